"""How VL-BERT, both ViLBERT releases and VisualBERT lay out a VCR item, as their cases show it.

What a release does to words, regions and labels are options of `VcrOptions`, named here.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from harness.case_files import ArrayError
from harness.finetuning.item_files import BATCH, Item, ItemCase, at, padded, region_leaves
from harness.finetuning.prepared_photos import VcrPhoto, prepare_vcr_photo
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.model.common.regions import WHOLE_IMAGE_LOCATION, region_locations
from roibeam.pipelines.data.datasets.vcr import (
    NUM_CHOICES,
    RawVcrQuestion,
    metadata_path,
    object_classes,
    read_vcr_metadata,
)
from roibeam.pipelines.finetuning.rows import PartPieces, PieceCoder, TaskGroup
from roibeam.pipelines.finetuning.tasks import vcr_rules
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, RATIONALE, VcrOptions, group_pieces, vcr_groups

PROBLEMS = {"Q2A": ANSWER, "QA": ANSWER, "answer": ANSWER, "QA2R": RATIONALE, "QAR": RATIONALE, "rationale": RATIONALE}
TEST, NAMES_DRAWN = "test", "names_drawn"
MakeItem = Callable[[str], Item]

_FLIPPED = "flip"
_NO_BOX, _NO_PIECE, _NO_MASK = -1.0, -2, -1.0  # padding of VL-BERT's batches


def item_maker(case: ItemCase, questions: list[RawVcrQuestion], mode: str) -> MakeItem:
    """What makes the items of a way to read the data set, by their numbers."""
    problem, *how = mode.split("_")
    if problem not in PROBLEMS or not set(how) <= {TEST, _FLIPPED}:
        raise ValueError(f"a way to read VCR that is unknown: {mode!r}")
    if "seq_len" in case.options:
        return _PhotoItems(case, questions, problem, how)
    if case.below("gt_image/"):
        return _StoredItems(case, questions, problem, is_test=TEST in how)
    return _TextItems(case, questions, problem)


def _coder(case: ItemCase) -> PieceCoder:
    return PieceCoder(lambda text: case.tokenizer.encode(text).ids[1:-1], case.tokenizer.piece)


def _cycle(case: ItemCase) -> list[str]:
    names = case.options.get("names_cycle")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ArrayError("config", "needs names_cycle, the names of people")
    return names


def _joined(parts: Sequence[PartPieces]) -> np.ndarray:
    """(n,) int64, the pieces of several parts one after the other."""
    return np.concatenate([part.ids for part in parts])


# --- photos with boxes: VL-BERT ---


class _PhotoItems:
    """Items as jackroos/VL-BERT vcr.py and its collation give them."""

    def __init__(self, case: ItemCase, questions: list[RawVcrQuestion], problem: str, how: Sequence[str]) -> None:
        self._case, self._flip = case, _FLIPPED in how
        self._options = VcrOptions(
            problem=PROBLEMS[problem],
            names=vcr_rules.IN_TURN,
            joining="and",
            truncation=vcr_rules.SHARED,
            max_pieces=case.size("seq_len", 1),
            cut_untold=False,
            object_loss=vcr_rules.SHOWN,
        )
        names = vcr_rules.name_rule(self._options.names, _cycle(case))
        self._groups = list(vcr_groups(questions, self._options, names, labelled=TEST not in how))

    def __call__(self, number: str) -> Item:
        return self._batch() if number == BATCH else self._one(int(number))

    def _one(self, number: int) -> dict[str, Any]:
        """Leaves of one item."""
        group = at(self._groups, number)
        photo, boxes = self._photo(group)
        high, wide = photo.photo.input_hw
        found: dict[str, Any] = {
            "image": photo.photo.pixels,
            "boxes": boxes,
            "masks": photo.masks,
            "im_info": np.array([wide, high, *photo.photo.scale_xy.tolist(), number], np.float32),
        }
        rows = group_pieces(group, _coder(self._case), self._options)
        contexts = [_columns(rows[first][:-1]) for first in range(0, len(rows), NUM_CHOICES)]
        found |= {f"question.{n}" if len(contexts) > 1 else "question": each for n, each in enumerate(contexts)}
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
            "boxes": padded([item["boxes"] for item in items], _NO_BOX),
            "masks": padded([item["masks"].numpy() for item in items], _NO_MASK),
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
        metadata = read_vcr_metadata(self._case.written(f"/{metadata_path(image)}"))
        photo = prepare_vcr_photo(
            self._case.pixels(group.images[0]),
            metadata,
            self._case.edges,
            CONVENTIONS["vlbert-e2e"],
            box_numbers=group.facts["input_boxes"],
            flip=self._flip,
        )
        names = [group.facts["objects"][number] for number in group.facts["input_boxes"]]
        # The release predicts the class of the whole image too, which is 0.
        classes = np.concatenate([[0], object_classes(names, image)])
        boxes = np.concatenate([photo.photo.boxes.numpy(), photo.scores[:, None].numpy(), classes[:, None]], axis=1)
        return photo, boxes.astype(np.float32)


def _columns(parts: Sequence[PartPieces]) -> np.ndarray:
    """(n, 3): piece, 0 for none or number of its box from 1 on, number of its word in its part."""
    return np.concatenate([np.stack([part.ids, part.tags + 1, part.words], axis=1) for part in parts])


def _choice_columns(items: Sequence[Item], name: str) -> np.ndarray:
    """(B, n, 3), or (B, 4, n, 3) where an item has four of them."""
    if all(name in item for item in items):
        return padded([item[name] for item in items], _NO_PIECE)
    rows = [item[f"{name}.{place}"] for item in items for place in range(NUM_CHOICES)]
    found = padded(rows, _NO_PIECE)
    return found.reshape(len(items), NUM_CHOICES, *found.shape[1:])


# --- stored regions: ViLBERT ---


class _StoredItems:
    """Items as vcr_dataset.py of vilbert_beta and vilbert-multi-task gives them: four rows, padded."""

    def __init__(self, case: ItemCase, questions: list[RawVcrQuestion], problem: str, *, is_test: bool) -> None:
        self._case = case
        self._pieces, self._regions = case.size("max_seq_length", 4), case.size("max_region_num")
        # How it counts: [CLS] and both [SEP] of a row are not cut, the one between question and answer is.
        self._options = VcrOptions(
            problem=PROBLEMS[problem],
            names=vcr_rules.DRAWN,
            truncation=vcr_rules.RUNNING if case.is_first else vcr_rules.CHOICE_END,
            max_pieces=self._pieces - 3,
            pieces_twice=not case.is_first,
            boxes=vcr_rules.DETECTED,
            max_boxes=self._regions,
        )
        self._mode = f"{problem}_{TEST}" if is_test else problem
        groups = list(vcr_groups(questions, self._options, vcr_rules.NamesDrawn(self._drawn()), labelled=not is_test))
        self._entries = [(group, place) for group in groups for place in range(len(group.rows) // NUM_CHOICES)]

    def __call__(self, number: str) -> Item:
        group, place = at(self._entries, int(number))
        rows = group_pieces(group, _coder(self._case), self._options, separator=self._case.tokenizer.sep_id)
        texts = [self._text(row) for row in rows[place * NUM_CHOICES : (place + 1) * NUM_CHOICES]]
        text, mask, segments = (np.stack(column) for column in zip(*texts, strict=True))
        labelled = group.target is not None  # in a test split the release gives every item the number 0
        return {
            "text": text,
            "input_mask": mask,
            "segment_ids": segments,
            "target": np.array(group.target if labelled else 0),
            "anno_id": np.array(int(group.facts["img_id"].rpartition("-")[2]) if labelled else 0),
            **self._shown(group),
        }

    def _drawn(self) -> Iterator[str]:
        """The names in the order in which the release drew them."""
        names = self._case.json(f"out/{self._mode}.{NAMES_DRAWN}")
        yield from names
        raise ValueError(f"{self._mode}: {len(names)} names were drawn, and ours need more")

    def _text(self, row: Sequence[PartPieces]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokenizer = self._case.tokenizer
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
        if f"image/{name}.boxes" not in self._case:  # the first release knows an image by its number
            name = group.facts["img_id"].rpartition("-")[2]
        (detected, first), (annotated, last) = (self._store(f"{kind}/{name}") for kind in ("image", "gt_image"))
        found = vcr_rules.join_regions(detected, annotated, self._options.max_boxes)
        sizes = [first] * found.num_detected + [last] * (len(found.boxes) - found.num_detected)
        wide_high = torch.tensor(np.array(sizes), dtype=torch.float32).reshape(-1, 2)
        boxes, real = torch.from_numpy(found.boxes)[:, None], torch.ones(len(found.boxes), 1, dtype=torch.bool)
        where = region_locations(boxes, wide_high.flip(-1), real)[:, 0].numpy()
        features = np.concatenate([found.whole[None], found.features])
        places = np.concatenate([np.array([WHOLE_IMAGE_LOCATION], np.float32), where])
        return region_leaves(features, places, self._regions)

    def _store(self, name: str) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        boxes = self._case.take_finite(f"{name}.boxes", None, 4)
        features = self._case.take_finite(f"{name}.features", len(boxes), None)
        return (features, boxes), self._case.take_finite(f"{name}.size_wh", 2)


# --- texts: VisualBERT ---


class _TextItems:
    """Rows as uclanlp/visualbert vcr_data_utils.py and bert_data_utils.py give them; an item is "question.choice"."""

    def __init__(self, case: ItemCase, questions: list[RawVcrQuestion], problem: str) -> None:
        self._case = case
        self._options = VcrOptions(
            problem=PROBLEMS[problem],
            names=vcr_rules.RESTARTED,
            truncation=vcr_rules.CHOICE_FRONT,
            max_pieces=case.size("max_seq_length", 4) - 3,
            boxes=vcr_rules.NAMED,
        )
        names = vcr_rules.name_rule(vcr_rules.RESTARTED, _cycle(case))
        self._groups = list(vcr_groups(questions, self._options, names))

    def __call__(self, number: str) -> Item:
        question, _, choice = number.partition(".")
        if not choice:
            raise ValueError(f"item {number}: expected a question and one of its choices")
        group = at(self._groups, int(question))
        row = at(group_pieces(group, _coder(self._case), self._options), int(choice))
        context, answer = _joined(row[:-1]), row[-1]
        cls_id, sep_id = self._case.tokenizer.cls_id, self._case.tokenizer.sep_id
        ids = [cls_id, *context, sep_id, *answer.ids, sep_id]
        counts = itertools.accumulate((len(part.words) for part in group.rows[0].parts[:-2]), initial=0)
        words = [part.words + before for part, before in zip(row[:-1], counts, strict=True)]
        return {
            "input_ids": np.array(ids),
            "input_mask": np.ones(len(ids), np.int64),
            "input_type_ids": np.repeat([0, 1], [len(context) + 2, len(answer.ids) + 1]),
            "context_word_index": np.concatenate(words),
            "answer_word_index": answer.words,
        }
