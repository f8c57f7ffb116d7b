"""A run in words: what was trained, from what, on what, and how good it is beside chance. Plain text, from config and
figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from roibeam.extraction.choice.detector_folder import SHIPPED
from roibeam.features.counted import counted
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, measure_name
from roibeam.pipelines.common.statistics.verdict import Figure, sentence_of, verdict_of
from roibeam.pipelines.training.run_folder.run_figures import RunSummary

_IN_A_SENTENCE = 8  # figures
_EPOCH_DIGITS = 0.0001  # of an epoch in log.jsonl
NEW_WEIGHTS, NOT_RECORDED = "new weights", "not recorded"
STARTED, ENCODER_STARTED = "started from", "region encoder started from"
_CHECKPOINT = re.compile(r"(?P<run>.*[^/])/checkpoints/step-0*(?P<step>\d+)(/|$)")


def model_sentence(config: Mapping[str, Any], summary: RunSummary | None, weights: int | None) -> str:
    """What was trained: "VisualBERT (4 layers of 256), 3.6 million weights"."""
    model = config["task"].get("model", {})
    name = summary.system if summary is not None and summary.system else _model_name(model)
    layers, width = _found(model, "num_hidden_layers"), _found(model, "hidden_size")
    detector = model.get("detector") if isinstance(model, Mapping) else None
    if layers is not None and width is not None:
        name += f" ({counted(layers, 'layer')} of {width:,})"
    elif isinstance(detector, Mapping):
        name += (
            f" (ResNet-{detector['depth']}, {counted(detector['num_classes'], 'class', 'classes')}, "
            f"{counted(detector['num_attributes'], 'attribute')})"
        )
    return name if weights is None else f"{name}, {short_number(weights)} weights"


def origins(config: Mapping[str, Any]) -> dict[str, str]:
    """What a run started from, by `STARTED`, and of one end to end its encoder, by `ENCODER_STARTED`: names and places
    as config.json has them, and `NOT_RECORDED` where it does not say, as of older runs."""
    task, recorded = config["task"], config["recorded"]
    of_detector = task.get("start")
    if isinstance(of_detector, Mapping):
        return {STARTED: _origin_of_detector(of_detector)}
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


def _origin_of_detector(start: Mapping[str, Any]) -> str:
    if start.get("weights"):
        return _with_its_run(start["weights"])
    if start.get("resnet"):
        return f"the ResNet of {_with_its_run(start['resnet'])}; the other layers are new"
    return NEW_WEIGHTS


def _with_its_run(weights: str) -> str:
    """A name or path of weights, with the run that it is of, as far as it says so."""
    if weights.startswith("random:"):
        return f"{NEW_WEIGHTS} ({weights})"
    shipped = (name for name, place in SHIPPED.items() if weights == name or PurePath(weights).parent == place)
    name = next(shipped, None)
    if name is not None:
        return f"{name}, roibeam's own detector" + ("" if weights == name else f" ({weights})")
    of_run = _CHECKPOINT.match(weights)
    return weights if of_run is None else f"{weights} (step {int(of_run['step']):,} of the run {of_run['run']})"


def data_sentence(config: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """On what: "on 400 captions of 80 images in store"; of a run on photos "end to end on 400 ..."."""
    recorded = config["recorded"]
    sources = recorded.get("sources")
    if sources:
        captions = sum(each["captions"] for each in sources)
        images = sum(each["join"]["found_images"] for each in sources)
        stores = str(sources[0]["store"]) if len(sources) == 1 else counted(len(sources), "store")
        way = "end to end " if "end_to_end" in config["task"].get("model", {}) else ""
        return f"{way}on {counted(captions, 'caption')} of {counted(images, 'image')} in {stores}"
    last = lines[-1]
    samples = round(last["samples"] / max(last["epoch"], _EPOCH_DIGITS))
    if recorded.get("text_files"):
        return f"on text alone, {', '.join(map(str, recorded['text_files']))}"
    if "labels" in config["task"] and recorded.get("root"):
        return f"on about {counted(samples, 'labelled photo')} of {recorded['root']}"
    return f"on {counted(samples, 'sample')}"


def how_good_sentence(summary: RunSummary | None) -> str:
    """How good on what the run asked about: its accuracies beside chance, in words; "" where they are not known."""
    if summary is None:
        return ""
    shares = [figure for figure in summary.figures if measure_name(figure.name).is_share and figure.value is not None]
    first = [figure for figure in shares if figure.chance is not None] or shares
    if not first:
        return ""
    return f"Asked about {summary.asked}: {'; '.join(map(sentence_of, first[:_IN_A_SENTENCE]))}."


def how_good_table(summary: RunSummary) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of it, the last cell the verdict; words alone have a column where they are known."""
    head = ["measure", "value", "95 % interval", CHANCE, WORDS_ALONE, "answers", "in words"]
    rows = [_how_good_row(figure) for figure in summary.figures]
    shown = [place for place, name in enumerate(head) if name != WORDS_ALONE or summary.words_alone]
    return [head[place] for place in shown], [[row[place] for place in shown] for row in rows]


def _how_good_row(figure: Figure) -> list[str]:
    """A cell for each head; "" for what is not known."""
    called = measure_name(figure.name)
    levels = ["" if level is None else called.shown(level) for level in (figure.chance, figure.words_alone)]
    interval = "" if figure.low is None else f"{called.shown(figure.low)} to {called.shown(figure.high)}"
    items = f"{figure.items:,}" if figure.items else ""
    return [called.title, called.shown(figure.value), interval, *levels, items, verdict_of(figure)]


def short_number(number: int) -> str:
    """ "3.6 million"; below 10,000 as it is."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,}"


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
