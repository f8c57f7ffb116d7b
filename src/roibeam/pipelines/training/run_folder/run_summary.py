"""Summary of a run, in figures and in words: its time, model and data, and results beside chance.

RUN/summary.json                   the last evaluation: its questions, its figures, and their levels of comparison
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path, PurePath
from typing import Any

from roibeam.extraction.weights.detector_choice import SHIPPED
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import plural
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import Figure, sentence_of, verdict_of

DETECTOR_NAME, ENCODER_NAME = "detector.json", "encoder.json"
# Displayed figures, and their keys in a `DetectionReport.as_json()`.
_FIGURES = {
    "mAP@0.5": ("objects", "mean"),
    "mAP@0.5, weighted by objects": ("objects", "weighted_mean"),
    "COCO AP": ("coco", "ap"),
    "COCO AP50": ("coco", "ap50"),
    "attributes right, found boxes": ("attribute_accuracy", "matched_boxes"),
    "attributes right, true boxes": ("attribute_accuracy", "given_boxes"),
    "recall of the selection": ("region_recall", "recall"),
    "class right, of its regions": ("calibration", "accuracy"),
}


def change_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value before and value after of each measured figure of detector.json; "-" for an unknown one."""
    rows = []
    for name, (part, figure) in _FIGURES.items():
        values = [found[when][part][figure] if when in found else None for when in ("before", "after")]
        if values != [None, None]:
            before, after = ("-" if value is None else f"{100 * value:.1f} %" for value in values)
            rows.append((name, before, after))
    return rows


def stage_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Each stage of a region encoder in encoder.json, whether it is trained, and how far it moved."""
    return [
        (
            each["stage"],
            "trained" if each["trained"] else "frozen",
            "not known" if each["moved"] is None else f"{each['moved']:.3g}",
        )
        for each in found["stages"]
    ]


def encoder_lines(found: Mapping[str, Any]) -> list[str]:
    """The masking of photos, and `stage_rows`, for the terminal."""
    head = "the region encoder, and how far it moved from the weights it began with (|w - w0| / |w0|):"
    return [found["masking"], head, *(f"  {stage:<10} {state:<8} {far:>10}" for stage, state, far in stage_rows(found))]


SUMMARY_NAME = "summary.json"
_PRETRAINING = (
    "Masks and pairs are drawn by the training rules of this system. roibeam evaluate treats all systems alike and "
    "masks 15 % of words and regions, so its numbers differ from these."
)


@dataclass(frozen=True)
class TrainingSummary:
    """Results of a run; a file of its own, which runs of earlier versions have without its last fields.

    Attributes:
        system: title of the trained system, such as "VisualBERT"; "" for that of its configuration.
        asked: data of the evaluation, for people.
        held_out: whether the run was not trained on them.
        evaluation: numbers by name; None for those that could not be measured.
        chance: level of a model that knows nothing, by the same names.
        items: number of answers behind each number.
        words_alone: level of counting neighbouring words without any picture, by the same names; empty in old runs.
        intervals: ends of the 95 % interval over images, by the same names; empty in old runs, and for some numbers.
        question: rules of the evaluation, for people.
    """

    system: str
    asked: str
    held_out: bool
    evaluation: Mapping[str, float | None]
    chance: Mapping[str, float]
    items: Mapping[str, int]
    words_alone: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    question: str = _PRETRAINING

    @classmethod
    def of_figures(
        cls, figures: Sequence[Figure], *, system: str, asked: str, held_out: bool, question: str = _PRETRAINING
    ) -> TrainingSummary:
        return cls(
            system,
            asked,
            held_out,
            {each.name: each.value for each in figures},
            {each.name: each.chance for each in figures if each.chance is not None},
            {each.name: each.items for each in figures if each.items},
            {each.name: each.words_alone for each in figures if each.words_alone is not None},
            {each.name: (each.low, each.high) for each in figures if each.low is not None and each.high is not None},
            question,
        )

    @property
    def figures(self) -> list[Figure]:
        """Figures of all numbers, shares first."""
        found = []
        for name in sorted(self.evaluation, key=lambda name: not measure_name(name).is_share):
            low, high = self.intervals.get(name, (None, None))
            items, alone = self.items.get(name, 0), self.words_alone.get(name)
            found.append(Figure(name, self.evaluation[name], low, high, self.chance.get(name), None, items, alone))
        return found


def write_summary(run_dir: Path, summary: TrainingSummary) -> None:
    write_bytes_atomically(run_dir / SUMMARY_NAME, (json.dumps(asdict(summary), indent=1) + "\n").encode())


def read_summary(run_dir: Path) -> TrainingSummary | None:
    """The summary; None for a run that was ended before, or is no pre-training."""
    path = run_dir / SUMMARY_NAME
    return TrainingSummary(**read_json_object(path)) if path.is_file() else None


def training_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """Time of the steps of log.jsonl, over all calls of the run; evaluations are included.

    Each call counts its seconds from its own start.
    """
    total, before = 0.0, 0.0
    for line in lines:
        seconds = line["seconds"]
        total += seconds - before if seconds >= before else seconds
        before = seconds
    return total


def number_of_weights(run_dir: Path) -> int | None:
    """Numbers in the newest checkpoint's weight file, read from its header; None without one."""
    files = sorted(run_dir.glob("checkpoints/step-*/model/*.safetensors"))
    count = 0
    for file in (file for file in files if file.parents[1] == files[-1].parents[1]):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            tensors = json.loads(opened.read(length))
        count += sum(prod(each["shape"]) for name, each in tensors.items() if name != "__metadata__")
    return count if files else None


_IN_A_SENTENCE = 8  # figures
_EPOCH_DIGITS = 0.0001  # of an epoch in log.jsonl
NEW_WEIGHTS, NOT_RECORDED = "new weights", "not recorded"
STARTED, ENCODER_STARTED = "started from", "region encoder started from"
_CHECKPOINT = re.compile(r"(?P<run>.*[^/])/checkpoints/step-0*(?P<step>\d+)(/|$)")


def model_sentence(config: Mapping[str, Any], summary: TrainingSummary | None, weights: int | None) -> str:
    """The trained model: "VisualBERT (4 layers of 256), 3.6 million weights"."""
    model = config["task"].get("model", {})
    name = summary.system if summary is not None and summary.system else _model_name(model)
    layers, width = _found(model, "num_hidden_layers"), _found(model, "hidden_size")
    detector = model.get("detector") if isinstance(model, Mapping) else None
    if layers is not None and width is not None:
        name += f" ({plural(layers, 'layer')} of {width:,})"
    elif isinstance(detector, Mapping):
        name += (
            f" (ResNet-{detector['depth']}, {plural(detector['num_classes'], 'class', 'classes')}, "
            f"{plural(detector['num_attributes'], 'attribute')})"
        )
    if weights is None:
        return name
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if weights >= size:
            return f"{name}, {weights / size:.3g} {word} weights"
    return f"{name}, {weights:,} weights"


def origins(config: Mapping[str, Any]) -> dict[str, str]:
    """Starts of a run, by `STARTED`, and of an end-to-end run's encoder, by `ENCODER_STARTED`: names and paths as in
    config.json, and `NOT_RECORDED` if it has none, as in older runs."""
    task, recorded = config["task"], config["recorded"]
    of_detector = task.get("start")
    if isinstance(of_detector, Mapping):
        if of_detector.get("weights"):
            return {STARTED: _with_its_run(of_detector["weights"])}
        if of_detector.get("resnet"):
            return {STARTED: f"the ResNet of {_with_its_run(of_detector['resnet'])}; the other layers are new"}
        return {STARTED: NEW_WEIGHTS}
    start, model, bert = (recorded.get(name) for name in ("start", "start_model", "bert"))
    if start not in (None, "none"):
        found = {STARTED: _with_its_run(model if model is not None and _CHECKPOINT.match(model) else start)}
    elif bert:
        found = {STARTED: f"the text model {bert}; the other weights are new"}
    elif recorded.keys() >= {"start", "bert"}:
        found = {STARTED: NEW_WEIGHTS}
    elif "start" in recorded:
        found = {STARTED: f"{NEW_WEIGHTS}; whether a text model's are among them is {NOT_RECORDED}"}
    else:
        found = {STARTED: NOT_RECORDED}
    encoder = _found(task.get("model"), "region_encoder")
    if isinstance(encoder, Mapping):
        weights = recorded.get("encoder_weights")
        network = encoder.get("detector", {}).get("depth")
        of_what = "" if network is None else f", a ResNet-{network}"
        found[ENCODER_STARTED] = NOT_RECORDED if weights is None else f"{_with_its_run(weights)}{of_what}"
    return found


def _with_its_run(weights: str) -> str:
    """A name or path of weights, with their run as far as it is known."""
    if weights.startswith("random:"):
        return f"{NEW_WEIGHTS} ({weights})"
    shipped = (name for name, place in SHIPPED.items() if weights == name or PurePath(weights).parent == place)
    name = next(shipped, None)
    if name is not None:
        return f"{name}, roibeam's own detector" + ("" if weights == name else f" ({weights})")
    of_run = _CHECKPOINT.match(weights)
    return weights if of_run is None else f"{weights} (step {int(of_run['step']):,} of the run {of_run['run']})"


def data_sentence(config: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """The data: "on 400 captions of 80 images in store"; of a run on photos "end to end on 400 ..."."""
    recorded = config["recorded"]
    sources = recorded.get("sources")
    if sources:
        captions = sum(each["captions"] for each in sources)
        # Runs of earlier versions recorded only the images that the file and the store share, held-out ones too.
        images = sum(each.get("images", each["join"]["found_images"]) for each in sources)
        stores = str(sources[0]["store"]) if len(sources) == 1 else plural(len(sources), "store")
        way = "end to end " if "end_to_end" in config["task"].get("model", {}) else ""
        return f"{way}on {plural(captions, 'caption')} of {plural(images, 'image')} in {stores}"
    last = lines[-1]
    samples = round(last["samples"] / max(last["epoch"], _EPOCH_DIGITS))
    if recorded.get("text_files"):
        return f"on text alone, {', '.join(map(str, recorded['text_files']))}"
    if "labels" in config["task"] and recorded.get("root"):
        return f"on {plural(recorded.get('photos', samples), 'labelled photo')} of {recorded['root']}"
    return f"on {plural(samples, 'sample')}"


def how_good_sentence(summary: TrainingSummary | None) -> str:
    """The results: accuracies beside chance, in words; "" if unknown."""
    if summary is None:
        return ""
    shares = [figure for figure in summary.figures if measure_name(figure.name).is_share and figure.value is not None]
    first = [figure for figure in shares if figure.chance is not None] or shares
    if not first:
        return ""
    return f"Evaluated on {summary.asked}: {'; '.join(map(sentence_of, first[:_IN_A_SENTENCE]))}."


def how_good_table(summary: TrainingSummary) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of the results, the last cell the verdict; words alone have a column if known."""
    head = ["measure", "value", "95 % interval", CHANCE, WORDS_ALONE, "answers", "in words"]
    rows = [_how_good_row(figure) for figure in summary.figures]
    columns = [place for place, name in enumerate(head) if name != WORDS_ALONE or summary.words_alone]
    return [head[place] for place in columns], [[row[place] for place in columns] for row in rows]


def _how_good_row(figure: Figure) -> list[str]:
    """A cell for each head; "" for an unknown value."""
    called = measure_name(figure.name)
    levels = ["" if level is None else called.formatted(level) for level in (figure.chance, figure.words_alone)]
    interval = "" if figure.low is None else f"{called.formatted(figure.low)} to {called.formatted(figure.high)}"
    items = f"{figure.items:,}" if figure.items else ""
    return [called.title, called.formatted(figure.value), interval, *levels, items, verdict_of(figure)]


def _model_name(model: Any) -> str:
    architectures = _found(model, "architectures")
    if architectures:
        return re.sub(r"For[A-Z]\w*$", "", str(architectures[0]))
    return "Detector" if isinstance(model, Mapping) and "detector" in model else "A model"


def _found(tree: Any, name: str) -> Any:
    """The first value of that name, however deep; None for none."""
    if not isinstance(tree, Mapping):
        return None
    if name in tree:
        return tree[name]
    return next((found for part in tree.values() if (found := _found(part, name)) is not None), None)
