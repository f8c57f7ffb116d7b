"""VCR's items and result files: VL-BERT (photos), both ViLBERT releases (stored regions), VisualBERT (texts).

The releases' rules are options of `VcrOptions`. Here stands only how a release lays an item out, and how a case shows
it.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.model.common.regions import WHOLE_IMAGE_LOCATION, region_locations
from roibeam.pipelines.conformance.case_files import ArrayError, Arrays
from roibeam.pipelines.conformance.checks import Check, apart, close, equal, failed, guarded, within
from roibeam.pipelines.conformance.finetuning.item_files import (
    FILES,
    ITEM_TOLERANCE,
    json_of,
    same_json,
    text_of,
    unread_outputs,
    write_item_file,
)
from roibeam.pipelines.conformance.tolerances import METRICS, VLBERT, Allclose
from roibeam.pipelines.finetuning.metrics.vcr import best_choice
from roibeam.pipelines.finetuning.results.vcr_results import joined_scores, probabilities, write_vcr_results
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, RATIONALE, VcrOptions, group_pieces, vcr_groups, vcr_scores
from roibeam.pipelines.finetuning.tasks.vcr_names import IN_TURN, RESTARTED, NameRule, NamesDrawn, name_rule
from roibeam.pipelines.finetuning.tasks.vcr_photo import VcrPhoto, prepare_vcr_photo
from roibeam.pipelines.finetuning.tasks.vcr_pieces import (
    CHOICE_END,
    CHOICE_FRONT,
    RUNNING,
    SHARED,
    PartPieces,
    PieceCoder,
)
from roibeam.pipelines.finetuning.tasks.vcr_regions import DETECTED, NAMED, join_regions, object_classes, object_targets
from roibeam.pipelines.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.sources.datasets.vcr import NUM_CHOICES, VcrMetadata, metadata_path, read_vcr_metadata
from roibeam.pipelines.sources.datasets.vcr_texts import PERSON, VcrAsked, read_vcr_asked

MAX_PADDED = 1 << 12  # regions and pieces that a case may ask for
MAX_LABELLED = 6  # rows of which all labels are tried
Item = Mapping[str, Any]  # leaf -> ours
MakeItem = Callable[[str], Item]

_NAME = re.compile(r"out/([A-Za-z0-9_]+)\.(\d+(?:\.\d)?|batch)\.([a-z][a-z0-9_]*(?:\.\d)?)")
_SCALES = re.compile(r"SCALES (\d+)/(\d+)")
_BATCH, _TEST, _FLIPPED, _DRAWN = "batch", "test", "flip", "names_drawn"
_NO_BOX, _NO_PIECE, _NO_MASK = -1.0, -2, -1.0  # padding of VL-BERT's batches
_PROBLEMS = {"Q2A": ANSWER, "QA": ANSWER, "answer": ANSWER, "QA2R": RATIONALE, "QAR": RATIONALE, "rationale": RATIONALE}


class _Files(NamedTuple):
    """What all cases have: the questions, and a tokenizer."""

    questions: list[VcrAsked]
    tokenizer: CaptionTokenizer

    @property
    def coder(self) -> PieceCoder:
        return PieceCoder(lambda text: self.tokenizer.encode(text).ids[1:-1], self.tokenizer.piece)


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    config = arrays.take_json_object("config")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asked = [name for name in arrays.names if name.startswith(FILES) and name.endswith(".jsonl")]
        if len(asked) != 1:
            raise ValueError(f"{arrays.path.name}: expected one file of questions, got {len(asked)}")
        questions = list(read_vcr_asked(write_item_file(arrays, asked[0], folder / "asked.jsonl")))
        tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", folder / "vocab.txt"))
        files = _Files(questions, tokenizer)
        for mode, items in _items(arrays).items():
            yield from guarded(f"out/{mode}", partial(_mode_checks, arrays, config, files, folder, mode, items))
    yield from unread_outputs(arrays)


def _mode_checks(
    arrays: Arrays,
    config: Mapping[str, Any],
    files: _Files,
    folder: Path,
    mode: str,
    items: Mapping[str, Sequence[str]],
) -> Iterator[Check]:
    """All items of one way to read the data set."""
    make = _maker(arrays, config, files, folder, mode)
    if (name := f"out/{mode}.{_DRAWN}") in arrays:
        yield _all_used(arrays, name, files, mode)
    for number, leaves in items.items():
        made = make(number)
        for leaf in leaves:
            yield _compared(arrays, f"out/{mode}.{number}.{leaf}", leaf, made)


def _all_used(arrays: Arrays, name: str, files: _Files, mode: str) -> Check:
    """Whether as many names were drawn as ours ask for; which they were shows in the texts."""
    people = [sum(kind == PERSON for kind in asked.objects) for asked in files.questions]
    contexts = NUM_CHOICES if _PROBLEMS[mode.split("_")[0]] == RATIONALE and mode.endswith(_TEST) else 1
    return equal(name, np.array(len(json_of(arrays, name))), np.array(contexts * sum(people)))


def _maker(arrays: Arrays, config: Mapping[str, Any], files: _Files, folder: Path, mode: str) -> MakeItem:
    problem, *how = mode.split("_")
    if problem not in _PROBLEMS or not set(how) <= {_TEST, _FLIPPED}:
        raise ValueError(f"a way to read VCR that is unknown: {mode!r}")
    if "seq_len" in config:
        return _PhotoItems(arrays, config, files, folder, problem, how).item
    if any(name.startswith("gt_image/") for name in arrays.names):
        return _StoredItems(arrays, config, files, problem, is_test=_TEST in how).item
    return _TextItems(config, files, problem).item


def _items(arrays: Arrays) -> dict[str, dict[str, list[str]]]:
    """mode -> number of the item or "batch" -> its leaves."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in arrays.names:
        if match := _NAME.fullmatch(name):
            found.setdefault(match[1], {}).setdefault(match[2], []).append(match[3])
    return found


def _compared(arrays: Arrays, name: str, leaf: str, made: Item) -> Check:
    """One leaf: whole numbers and masks are equal, pixels a grey level apart, the rest within the README's."""
    if leaf not in made:
        return failed(name, "no such output of ours")
    want = arrays.take(name)
    if want.dtype.kind in "biu" or leaf == "masks":
        return equal(name, made[leaf], want)
    if leaf == "image":
        return apart(name, made[leaf], want, VLBERT.grey_levels)
    return close(name, made[leaf], want, Allclose(ITEM_TOLERANCE))


def _number(config: Mapping[str, Any], name: str, least: int) -> int:
    value = config.get(name)
    if type(value) is not int or not least <= value <= MAX_PADDED:
        raise ArrayError("config", f"{name} is {value!r}, expected {least} to {MAX_PADDED}")
    return value


def _cycle(config: Mapping[str, Any]) -> list[str]:
    names = config.get("names_cycle")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ArrayError("config", "needs names_cycle, the names of people")
    return names


def _groups(files: _Files, options: VcrOptions, names: NameRule, *, told: bool = True) -> list[TaskGroup]:
    return list(vcr_groups(files.questions, options, names, told=told))


def _at(rows: Sequence[Any], number: int) -> Any:
    if number >= len(rows):
        raise ValueError(f"item {number} of {len(rows)}")
    return rows[number]


def _padded(rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """(B, longest row, ...)."""
    padded = np.full((len(rows), max(map(len, rows), default=0), *rows[0].shape[1:]), fill, rows[0].dtype)
    for own, row in zip(padded, rows, strict=True):
        own[: len(row)] = row
    return padded


def _joined(parts: Sequence[PartPieces]) -> np.ndarray:
    """(n,) int64, the pieces of several parts one after the other."""
    return np.concatenate([part.ids for part in parts])


# --- photos with boxes: VL-BERT ---


class _PhotoItems:
    """Items as jackroos/VL-BERT vcr.py and its collation give them."""

    def __init__(
        self,
        arrays: Arrays,
        config: Mapping[str, Any],
        files: _Files,
        folder: Path,
        problem: str,
        how: Sequence[str],
    ) -> None:
        scales = _SCALES.search(str(config.get("official")))
        if scales is None:
            raise ArrayError("config", 'says no "SCALES a/b", the edges that photos are resized to')
        self._edges = DetectorConfig(short_edge=int(scales[1]), long_edge=int(scales[2]))
        self._arrays, self._files, self._folder = arrays, files, folder
        self._flip, self._told = _FLIPPED in how, _TEST not in how
        self._options = VcrOptions(
            problem=_PROBLEMS[problem],
            names=IN_TURN,
            joining="and",
            truncation=SHARED,
            max_pieces=_number(config, "seq_len", 1),
            cut_untold=False,
            object_loss="shown",
        )
        names = name_rule(self._options.names, _cycle(config))
        self._groups = _groups(files, self._options, names, told=self._told)

    def item(self, number: str) -> Item:
        return self._batch() if number == _BATCH else self._one(int(number))

    def _one(self, number: int) -> dict[str, Any]:
        """Leaves of one item."""
        group = _at(self._groups, number)
        photo, boxes = self._photo(group)
        high, wide = photo.photo.input_hw
        found: dict[str, Any] = {
            "image": photo.photo.pixels,
            "boxes": boxes,
            "masks": photo.masks,
            "im_info": np.array([wide, high, *photo.photo.scale_xy.tolist(), number], np.float32),
        }
        rows = group_pieces(group, self._files.coder, self._options)
        contexts = [_columns(rows[first][:-1]) for first in range(0, len(rows), NUM_CHOICES)]
        if len(contexts) == 1:
            found["question"] = contexts[0]
        found |= {f"question.{place}": context for place, context in enumerate(contexts) if len(contexts) > 1}
        problem = self._options.problem
        found |= {f"{problem}_choices.{place}": _columns([row[-1]]) for place, row in enumerate(rows[:NUM_CHOICES])}
        if group.target is not None:
            found[f"{problem}_label"] = np.array(group.target)
        return found

    def _batch(self) -> dict[str, Any]:
        """Leaves of all items, padded."""
        items = [self._one(number) for number in range(len(self._groups))]
        sizes = np.array([item["image"].shape for item in items])
        problem = self._options.problem
        found = {
            "image_shape": np.array([len(items), *sizes.max(axis=0)]),
            "boxes": _padded([item["boxes"] for item in items], _NO_BOX),
            "masks": _padded([item["masks"].numpy() for item in items], _NO_MASK),
            "im_info": np.stack([item["im_info"] for item in items]),
            "question": _choice_columns(items, "question"),
            f"{problem}_choices": _choice_columns(items, f"{problem}_choices"),
        }
        if all(f"{problem}_label" in item for item in items):
            found[f"{problem}_label"] = np.array([item[f"{problem}_label"] for item in items])
        return found

    def _photo(self, group: TaskGroup) -> tuple[VcrPhoto, np.ndarray]:
        """The photo, and its (R, 6) boxes with score and class."""
        image = group.facts["image"]
        metadata = self._metadata(image)
        pixels = self._arrays.take(f"image/{group.images[0]}.rgb", None, None, 3)
        if pixels.dtype != np.uint8:
            raise ArrayError(f"image/{group.images[0]}.rgb", f"holds {pixels.dtype}, expected bytes")
        photo = prepare_vcr_photo(
            np.ascontiguousarray(pixels[..., ::-1]),
            metadata,
            self._edges,
            CONVENTIONS["vlbert-e2e"],
            shown=group.facts["shown"],
            flip=self._flip,
        )
        names = [group.facts["objects"][number] for number in group.facts["shown"]]
        classes = object_targets(object_classes(names, image), self._options.object_loss)
        boxes = np.concatenate([photo.photo.boxes.numpy(), photo.scores[:, None].numpy(), classes[:, None]], axis=1)
        return photo, boxes.astype(np.float32)

    def _metadata(self, image: str) -> VcrMetadata:
        """Of an image, as its file below the folder of images is read."""
        names = [name for name in self._arrays.names if name.startswith(FILES)]
        name = next((name for name in names if name.endswith(f"/{metadata_path(image)}")), None)
        if name is None:
            raise ArrayError(f"{FILES}{metadata_path(image)}", "is not in the case")
        return read_vcr_metadata(write_item_file(self._arrays, name, self._folder / "metadata.json"))


def _columns(parts: Sequence[PartPieces]) -> np.ndarray:
    """(n, 3): piece, 0 for none or number of its box from 1 on, number of its word in its part."""
    return np.concatenate([np.stack([part.ids, part.tags + 1, part.words], axis=1) for part in parts])


def _choice_columns(items: Sequence[Item], name: str) -> np.ndarray:
    """(B, n, 3), or (B, 4, n, 3) where an item has four of them."""
    if all(name in item for item in items):
        return _padded([item[name] for item in items], _NO_PIECE)
    rows = [item[f"{name}.{place}"] for item in items for place in range(NUM_CHOICES)]
    padded = _padded(rows, _NO_PIECE)
    return padded.reshape(len(items), NUM_CHOICES, *padded.shape[1:])


# --- stored regions: ViLBERT ---


class _StoredItems:
    """Items as vcr_dataset.py of vilbert_beta and vilbert-multi-task gives them: four rows, padded."""

    def __init__(
        self, arrays: Arrays, config: Mapping[str, Any], files: _Files, problem: str, *, is_test: bool
    ) -> None:
        self._arrays, self._files = arrays, files
        self._pieces, self._regions = _number(config, "max_seq_length", 4), _number(config, "max_region_num", 2)
        is_first = "first" in arrays.path.stem
        # How it counts: [CLS] and both [SEP] of a row are not cut, the one between question and answer is.
        self._options = VcrOptions(
            problem=_PROBLEMS[problem],
            names="drawn",
            truncation=RUNNING if is_first else CHOICE_END,
            max_pieces=self._pieces - 3,
            pieces_twice=not is_first,
            boxes=DETECTED,
            max_boxes=self._regions,
        )
        self._mode = f"{problem}_{_TEST}" if is_test else problem
        self._groups = _groups(files, self._options, NamesDrawn(self._drawn()), told=not is_test)
        per_group = len(self._groups[0].rows) // NUM_CHOICES if self._groups else 1
        self._entries = [(group, place) for group in self._groups for place in range(per_group)]

    def item(self, number: str) -> Item:
        group, place = _at(self._entries, int(number))
        rows = group_pieces(group, self._files.coder, self._options, separator=self._files.tokenizer.sep_id)
        texts = [self._text(row) for row in rows[place * NUM_CHOICES : (place + 1) * NUM_CHOICES]]
        text, mask, segments = (np.stack(column) for column in zip(*texts, strict=True))
        told = group.target is not None  # in a test split the release gives every item the number 0
        return {
            "text": text,
            "input_mask": mask,
            "segment_ids": segments,
            "target": np.array(group.target if told else 0),
            "anno_id": np.array(int(group.facts["img_id"].rpartition("-")[2]) if told else 0),
            **self._shown(group),
        }

    def _drawn(self) -> Iterator[str]:
        """The names in the order in which the release drew them."""
        names = json_of(self._arrays, f"out/{self._mode}.{_DRAWN}")
        yield from names
        raise ValueError(f"{self._mode}: {len(names)} names were drawn, and ours need more")

    def _text(self, row: Sequence[PartPieces]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokenizer = self._files.tokenizer
        context, choice = _joined(row[:-1]), row[-1].ids
        ids = [tokenizer.cls_id, *context, tokenizer.sep_id, *choice, tokenizer.sep_id]
        if len(ids) > self._pieces:
            raise ValueError(f"{self._mode}: {len(ids)} pieces where {self._pieces} fit")
        text, mask, segments = np.zeros((3, self._pieces), np.int64)
        text[: len(ids)], mask[: len(ids)] = ids, 1
        segments[len(context) + 2 : len(ids)] = 1
        return text, mask, segments

    def _shown(self, group: TaskGroup) -> dict[str, Any]:
        """Features, places and mask of the whole image, the detected and the annotated regions."""
        name = group.facts["image"]
        if f"image/{name}.boxes" not in self._arrays:  # the first release knows an image by its number
            name = group.facts["img_id"].rpartition("-")[2]
        (detected, first), (annotated, last) = (self._store(f"{kind}/{name}") for kind in ("image", "gt_image"))
        found = join_regions(detected, annotated, self._options.max_boxes)
        sizes = [first] * found.num_detected + [last] * (len(found.boxes) - found.num_detected)
        wide_high = torch.tensor(np.array(sizes), dtype=torch.float32).reshape(-1, 2)
        boxes, real = torch.from_numpy(found.boxes)[:, None], torch.ones(len(found.boxes), 1, dtype=torch.bool)
        where = region_locations(boxes, wide_high.flip(-1), real)[:, 0].numpy()
        features = np.concatenate([found.whole[None], found.features])
        places = np.concatenate([np.array([WHOLE_IMAGE_LOCATION], np.float32), where])
        return {
            "features_first8": self._rows(features[:, :8]),
            "features_row_sum": self._rows(features.sum(axis=1, dtype=np.float64)),
            "spatials": self._rows(places),
            "image_mask": self._rows(np.ones(len(features), np.int64)),
        }

    def _store(self, name: str) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        boxes = self._arrays.take_finite(f"{name}.boxes", None, 4)
        features = self._arrays.take_finite(f"{name}.features", len(boxes), None)
        return (features, boxes), self._arrays.take_finite(f"{name}.size_wh", 2)

    def _rows(self, values: np.ndarray) -> np.ndarray:
        padded = np.zeros((self._regions, *values.shape[1:]), values.dtype)
        padded[: len(values)] = values
        return padded


# --- texts: VisualBERT ---


class _TextItems:
    """Rows as vcr_data_utils.py and bert_data_utils.py of uclanlp/visualbert give them; an item is "question.choice"."""

    def __init__(self, config: Mapping[str, Any], files: _Files, problem: str) -> None:
        self._tokenizer, self._coder = files.tokenizer, files.coder
        self._options = VcrOptions(
            problem=_PROBLEMS[problem],
            names=RESTARTED,
            truncation=CHOICE_FRONT,
            max_pieces=_number(config, "max_seq_length", 4) - 3,
            boxes=NAMED,
        )
        self._groups = _groups(files, self._options, name_rule(self._options.names, _cycle(config)))

    def item(self, number: str) -> Item:
        question, _, choice = number.partition(".")
        if not choice:
            raise ValueError(f"item {number}: expected a question and one of its choices")
        group = _at(self._groups, int(question))
        row = _at(group_pieces(group, self._coder, self._options), int(choice))
        context, answer = _joined(row[:-1]), row[-1]
        ids = [self._tokenizer.cls_id, *context, self._tokenizer.sep_id, *answer.ids, self._tokenizer.sep_id]
        counts = itertools.accumulate((len(part.words) for part in group.rows[0].parts[:-2]), initial=0)
        words = [part.words + before for part, before in zip(row[:-1], counts, strict=True)]
        return {
            "input_ids": np.array(ids),
            "input_mask": np.ones(len(ids), np.int64),
            "input_type_ids": np.repeat([0, 1], [len(context) + 2, len(answer.ids) + 1]),
            "context_word_index": np.concatenate(words),
            "answer_word_index": answer.words,
        }


# --- result files ---


def prediction_checks(arrays: Arrays) -> Iterator[Check]:
    """Of the parts of a case of result files that are of VCR."""
    if "in/q2a_logits" in arrays:
        yield from _merged_checks(arrays)
    if "out/vcr_result_json" in arrays:
        yield from _choice_checks(arrays)
    if "out/submission_csv" in arrays:
        yield from _submission_checks(arrays)


def _merged_checks(arrays: Arrays) -> Iterator[Check]:
    """VL-BERT, vcr/function/test.py: one file of each problem, and both in one."""
    names = [str(name) for name in arrays.take_json_object("config").get("annot_ids", [])]
    answers = dict(zip(names, arrays.take_finite("in/q2a_logits", len(names), NUM_CHOICES), strict=True))
    logits = arrays.take_finite("in/qa2r_logits_per_answer", len(names), NUM_CHOICES, NUM_CHOICES)
    reasons = dict(zip(names, logits, strict=True))
    for kind, chosen, reasoned in (("Q2A", answers, None), ("QA2R", None, reasons), ("merged", answers, reasons)):
        yield _same_table(arrays, f"out/csv_{kind}", lambda c=chosen, r=reasoned: vcr_scores(c, r, names))


def _choice_checks(arrays: Arrays) -> Iterator[Check]:
    """ViLBERT and InterBERT, task_utils.py: probabilities by the number of the question; no other file is filled."""
    logits = arrays.take_finite("in/choice_logits", None, NUM_CHOICES)
    ids = arrays.take("in/question_ids", len(logits)).tolist()
    chances = probabilities(logits)
    name = "out/vcr_result_json"
    entries = json_of(arrays, name)
    if not isinstance(entries, list) or [set(entry) for entry in entries] != [{"question_id", "answer"}] * len(ids):
        yield failed(name, "expected a list of question_id and answer")
    elif [entry["question_id"] for entry in entries] != ids:
        yield failed(name, f"other questions than {ids}")
    else:
        yield close(name, chances, np.array([entry["answer"] for entry in entries]), Allclose(METRICS.float32))
    yield same_json(arrays, "out/vcr_others_json", [])
    # The case does not tell which choices are right: some labels must give loss and hits.
    loss, hits, count = (float(value) for value in arrays.take_finite("out/vcr_loss_score_n", 3))
    name = "out/vcr_loss_score_n"
    if len(ids) > MAX_LABELLED:
        yield failed(name, f"{len(ids)} rows; labels of at most {MAX_LABELLED} are tried")
        return
    costs, best = -np.log(chances.astype(np.float64)), [best_choice(row) for row in logits]
    errors = (
        abs(float(np.mean([row[label] for row, label in zip(costs, labels, strict=True)])) - loss)
        for labels in itertools.product(range(NUM_CHOICES), repeat=len(ids))
        if sum(label == own for label, own in zip(labels, best, strict=True)) == hits and count == len(ids)
    )
    yield within(name, min(errors, default=float("inf")), 10 * METRICS.float32, "of the loss, for some labels")


def _submission_checks(arrays: Arrays) -> Iterator[Check]:
    """vilbert-multi-task, the script that makes the leaderboard's file: four entries of rationales for each question."""
    entries, reasoned = (json_of(arrays, f"in/submission_{kind}_json") for kind in ("Q_A", "Q_AR"))
    names = [f"test-{entry['question_id']}" for entry in entries]
    if len(reasoned) != NUM_CHOICES * len(names):
        raise ArrayError("in/submission_Q_AR_json", f"has {len(reasoned)} entries for {len(names)} questions")
    answers = {name: entry["answer"] for name, entry in zip(names, entries, strict=True)}
    rows = np.array([entry["answer"] for entry in reasoned]).reshape(len(names), NUM_CHOICES, NUM_CHOICES)
    reasons = dict(zip(names, rows, strict=True))
    yield _same_table(arrays, "out/submission_csv", lambda: joined_scores(answers, reasons, names))


def _same_table(arrays: Arrays, name: str, rows: Callable[[], Any]) -> Check:
    """Header, ids and their order are equal, numbers within the README's tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.csv"
        write_vcr_results(path, rows())
        ours, theirs = (
            list(csv.reader(io.StringIO(text))) for text in (path.read_text("utf-8"), text_of(arrays, name))
        )
    if not theirs or ours[0] != theirs[0] or [row[:1] for row in ours] != [row[:1] for row in theirs]:
        return failed(name, "another header, or other questions than ours")
    try:
        own, want = (np.array([[float(cell) for cell in row[1:]] for row in table[1:]]) for table in (ours, theirs))
    except ValueError as error:
        return failed(name, f"holds no numbers: {error}")
    return close(name, own, want, Allclose(METRICS.float32))
