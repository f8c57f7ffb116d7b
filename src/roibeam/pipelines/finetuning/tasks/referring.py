"""RefCOCO, RefCOCO+ and RefCOCOg from REFER's own files: the box of a photo that a sentence means, among candidates.

One group for each sentence: 10,758 sentences of RefCOCO+ val, not 3,805 references. Its target is the annotated box of
the object. Candidates are the annotated boxes of the photo, MAttNet's detections or the regions of the store;
`ReferringOptions` chooses the overlap that counts in training, and that of the metric. Of two stores one has detected
regions, the other annotated ones.

Sources of the candidates' order and number: jackroos/VL-BERT refcoco/data/datasets/refcoco.py;
refer_expression_dataset.py of jiasenlu/vilbert_beta and facebookresearch/vilbert-multi-task. Boxes are x1 y1 x2 y2 in
pixels of the photo, float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import plural
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.refer import (
    Box,
    ReferInstances,
    ReferringSentence,
    read_refer_detections,
    read_refer_instances,
    refer_image_id,
    sentences_of,
)
from roibeam.pipelines.data.datasets.rows import BadRows
from roibeam.pipelines.data.record_regions import regions_at_boxes
from roibeam.pipelines.finetuning.metrics.measure import Measure, write_entries
from roibeam.pipelines.finetuning.metrics.referring import BOX_RULES, ChosenBox, result_entry
from roibeam.pipelines.finetuning.metrics.vcr import best_choice
from roibeam.pipelines.finetuning.rows import REGION, TaskGroup, mirrored_rows, text_row
from roibeam.pipelines.finetuning.scored_tasks import DETECTIONS_NAME, INSTANCES_NAMES, REFS, check_data_set, find_file
from roibeam.pipelines.finetuning.task import DownstreamTask, JoinedImage, Prediction, TaskSplit

NONE, SIZE, LAST_PIXEL = "none", "size", "last_pixel"
WHOLE_IMAGES = (NONE, SIZE, LAST_PIXEL)
DETECTED_GO, LAST_GO, REFUSE = "detected", "last", "refuse"
TOO_MANY = (DETECTED_GO, LAST_GO, REFUSE)
WHOLE, DETECTED, ANNOTATED = 0, 1, 2


class Candidates(NamedTuple):
    """C candidates: the whole photo, then detected boxes, then annotated ones.

    Attributes:
        boxes: (C, 4) float32.
        kinds: (C,) int64: `WHOLE`, `DETECTED` or `ANNOTATED`.
        numbers: (C,) int64, place among the boxes of its kind that were given.
    """

    boxes: np.ndarray
    kinds: np.ndarray
    numbers: np.ndarray

    @property
    def regions(self) -> np.ndarray:
        """(C - 1, 4) or (C, 4), the boxes without the whole photo, which models add themselves."""
        return self.boxes[self.kinds != WHOLE]


def candidates_of(
    where: str, detected: np.ndarray, annotated: np.ndarray, image_hw: tuple[int, int] | None, rules: ReferringOptions
) -> Candidates:
    """Candidates of a photo.

    Args:
        detected, annotated: (D, 4) and (A, 4), in the order of the input; either may be empty.
    Raises:
        ValueError: for a photo without a size where the whole of it is a candidate, or with too many boxes where they
            are not to be cut.
    """
    given = (whole_image_box(where, image_hw, rules), _float32(detected), _float32(annotated))
    counts = [len(boxes) for boxes in given]
    more = sum(counts) - rules.max_boxes if rules.max_boxes else 0
    if more > 0:
        if rules.too_many == REFUSE:
            raise ValueError(
                f"{where}: {sum(counts)} candidates, {counts[ANNOTATED]} of them annotated, and max_boxes is "
                f"{rules.max_boxes}; raise it, or set too_many to choose which of them go"
            )
        for kind in (DETECTED, ANNOTATED) if rules.too_many == DETECTED_GO else (ANNOTATED, DETECTED):
            gone = min(more, counts[kind])
            counts[kind] -= gone
            more -= gone
    return Candidates(
        np.concatenate([boxes[:count] for boxes, count in zip(given, counts, strict=True)]),
        np.repeat(np.arange(3), counts),
        np.concatenate([np.arange(count) for count in counts]),
    )


def whole_image_box(where: str, image_hw: tuple[int, int] | None, rules: ReferringOptions) -> np.ndarray:
    """(1, 4) float32, the box of the whole photo, or (0, 4) where it is no candidate. Raises ValueError as
    `candidates_of`."""
    if rules.whole_image == NONE:
        return np.zeros((0, 4), np.float32)
    if image_hw is None:
        raise ValueError(f"{where}: its size is not known, and the whole image is a candidate")
    height, width = image_hw
    less = 1 if rules.whole_image == LAST_PIXEL else 0
    return np.array([[0, 0, width - less, height - less]], np.float32)


def corners(boxes: Iterable[Box]) -> np.ndarray:
    """(R, 4) float32 of boxes x, y, width, height; sums are taken in float64."""
    rows = np.array(list(boxes), np.float64).reshape(-1, 4)
    return np.concatenate([rows[:, :2], rows[:, :2] + rows[:, 2:]], axis=1).astype(np.float32)


def sides(box: Sequence[float] | np.ndarray) -> Box:
    """x, y, width, height of a box x1 y1 x2 y2."""
    x1, y1, x2, y2 = (float(each) for each in box)
    return x1, y1, x2 - x1, y2 - y1


def _float32(boxes: np.ndarray) -> np.ndarray:
    return np.asarray(boxes, np.float32).reshape(-1, 4)


TEXTS = ("sentence", "raw", "tokens")
ANNOTATED_BOXES, DETECTED_BOXES, STORED_BOXES = "annotated", "detected", "stored"
BOXES = (ANNOTATED_BOXES, DETECTED_BOXES, STORED_BOXES)
TARGETS = ("binary", "iou", "overlap")
PHOTO, INPUT = "photo", "input"
PLACES = (PHOTO, INPUT)
LOSSES = ("regions", "rows")
SHOWN_REGIONS, DETECTED_REGIONS = "shown", "detected"
TRAIN = "train"
SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "refcoco": ("train", "val", "testA", "testB"),
        "refcoco+": ("train", "val", "testA", "testB"),
        "refcocog": ("train", "val", "test"),
    }
)


@dataclass(frozen=True)
class ReferringOptions:
    """
    Attributes:
        text: of a sentence: "sentence", in lower case without punctuation; as typed ("raw": ViLBERT); its "tokens" with
            a blank between them (VL-BERT).
        boxes: the candidates: the "annotated" boxes of the photo; those that MAttNet "detected"; the regions that the
            store has ("stored").
        annotated_in_training: in training the annotated boxes, of a second store, stand behind the others (both
            releases).
        crowds: annotated boxes of crowds are candidates too (VL-BERT).
        whole_image: whether the photo as a whole is the first candidate, and up to where it goes: "none"; "size", to
            its width and height (ViLBERT); "last_pixel", one less (VL-BERT).
        max_boxes: most candidates of a photo, the photo itself among them; 0 = all.
        too_many: what a photo with more of them loses: "detected" boxes, from the end; the "last" boxes, so annotated
            ones go first (vilbert-multi-task); or it is an error ("refuse": the first ViLBERT fails in training).
        target: of a candidate in training: "binary", 1 for an overlap above 0.5 (VL-BERT); "iou", the overlap where it
            is at least 0.5 (ViLBERT); "overlap", as it is.
        judged_target: the same of the loss on other splits; ViLBERT's is "overlap".
        one_pixel_more: sides count x2 - x1 + 1 in the target, as both releases do; the metric has a rule of its own.
        overlap_in: where the target's overlap is measured: in the "photo", or in the network's "input", after photo and
            boxes are resized and clamped (VL-BERT), for which a run must be from photos.
        loss: binary cross-entropy of each candidate: its mean over all candidates of a batch ("regions": VL-BERT), or
            summed over those of a sentence ("rows": ViLBERT).
        image_feature: the feature of the whole photo: the mean of all input regions ("shown"), as a model takes it by
            itself; or of the "detected" ones alone, those that are cut too (both ViLBERT releases, in training), which
            a run has by `LayoutOptions.whole_image`.
        swap_sides: left and right change places in the text of a mirrored photo (VL-BERT).
        box_rule: what hits in the metric, a name of `BOX_RULES`.
    """

    text: str = "sentence"
    boxes: str = DETECTED_BOXES
    annotated_in_training: bool = False
    crowds: bool = False
    whole_image: str = NONE
    max_boxes: int = 0
    too_many: str = DETECTED_GO
    target: str = "binary"
    judged_target: str = "binary"
    one_pixel_more: bool = False
    overlap_in: str = PHOTO
    loss: str = "regions"
    image_feature: str = SHOWN_REGIONS
    swap_sides: bool = True
    box_rule: str = "refer"

    def __post_init__(self) -> None:
        check_choices(self, text=TEXTS, boxes=BOXES, target=TARGETS, judged_target=TARGETS, overlap_in=PLACES)
        check_choices(self, loss=LOSSES, image_feature=(SHOWN_REGIONS, DETECTED_REGIONS), box_rule=BOX_RULES)
        if self.annotated_in_training and self.boxes == ANNOTATED_BOXES:
            raise ValueError("ReferringOptions: annotated_in_training adds annotated boxes, and the boxes are these")
        check_choices(self, whole_image=WHOLE_IMAGES, too_many=TOO_MANY)
        check_least(self, max_boxes=0)

    def target_of(self, split: str) -> str:
        return self.target if split == TRAIN else self.judged_target


class ReferringFiles(NamedTuple):
    """One of the data sets, read.

    Attributes:
        instances: all objects and the sizes of photos.
        detections: by the number of the photo, x, y, width, height; None where they are not needed.
        notes: on rows of the files that cannot be used and are left out.
    """

    sentences: Sequence[ReferringSentence]
    instances: ReferInstances
    detections: Mapping[int, Sequence[Box]] | None = None
    notes: tuple[str, ...] = ()


def read_referring(folder: Path, name: str, options: ReferringOptions) -> ReferringFiles:
    """The files of a data set, found by their names in the folder or in one right below it.

    Args:
        name: one of `REFS`.
    """
    refs, instances = find_file(folder, REFS[name]), find_file(folder, *INSTANCES_NAMES)
    detections = find_file(folder, DETECTIONS_NAME) if options.boxes == DETECTED_BOXES else None
    files = referring_files(str(refs), str(instances), None if detections is None else str(detections))
    check_data_set(name, refs, files.sentences)
    return files


def referring_files(refs: str, instances: str, detections: str | None = None) -> ReferringFiles:
    """`read_referring` for files by their paths."""
    bad = {
        instances: BadRows("annotations", "annotation"),
        refs: BadRows("reference", "reference"),
        detections: BadRows("entry", "detection"),
    }
    objects = read_refer_instances(instances, bad[instances])
    sentences = list(sentences_of(refs, objects, instances, bad[refs]))
    found = None if detections is None else defaultdict[int, list[Box]](list)
    if found is not None and detections is not None:
        for number, box in read_refer_detections(detections, bad[detections]):
            found[number].append(box)
    notes = tuple(f"{path}: {note}" for path, each in bad.items() for note in each.notes())
    return ReferringFiles(sentences, objects, found, notes)


def referring_groups(files: ReferringFiles, split: str, options: ReferringOptions) -> list[TaskGroup]:
    """The sentences of a split, in the order of the file.

    A group's `boxes` are its candidates without the whole photo, which is `whole_image`; boxes from the store are not
    among them. Annotated ones that stand behind those are in `facts`, and `candidates_for` puts all together. Raises
    ValueError for a split without a sentence, or as `candidates_of`.
    """
    sentences = [each for each in files.sentences if each.split == split]
    if not sentences:
        splits = dict.fromkeys(each.split for each in files.sentences)
        raise ValueError(f"no sentence of the split {split!r}; there are {', '.join(splits)}")
    if options.boxes == DETECTED_BOXES and files.detections is None:
        raise ValueError("ReferringOptions: boxes are detected ones, and no file of detections was given")
    photos = _Photos(files, split, options)
    return [_group(each, photos, options) for each in sentences]


def candidates_for(group: TaskGroup, options: ReferringOptions, stored_boxes: np.ndarray | None = None) -> Candidates:
    """All candidates of a group in their order, the whole photo among them if it is one.

    Args:
        stored_boxes: (R, 4) x1 y1 x2 y2 in pixels, of the record of its photo, where candidates come from the store.
    """
    if options.boxes != STORED_BOXES:
        return group.facts["candidates"]
    if stored_boxes is None:
        raise ValueError(f"{group.id}: its candidates come from the store, and no boxes of the store were given")
    facts = group.facts
    return candidates_of(group.images[0], stored_boxes, facts["annotated"], facts["image_hw"], options)


def mirrored_group(group: TaskGroup, options: ReferringOptions) -> TaskGroup:
    """The group beside its mirrored photo. Boxes stay as they are: they are mirrored with the photo."""
    if not options.swap_sides:
        return group
    return replace(group, rows=mirrored_rows(group.rows))


def chosen_boxes(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[ChosenBox]:
    """The candidate of the highest score for each sentence, the first of equal ones; no box where there is none."""
    for group, each in zip(groups, predictions, strict=True):
        boxes = each.boxes if each.boxes is not None else np.zeros((0, 4), np.float32)
        box = sides(boxes[best_choice(each.scores.tolist())]) if len(boxes) else None
        yield ChosenBox(group.facts["sent_id"], group.facts["ref_id"], box)


def referring_scores(
    groups: Sequence[TaskGroup], predictions: Sequence[Prediction], options: ReferringOptions
) -> dict[str, Measure]:
    """ "accuracy" over sentences, the main measure, and "upper bound", the share of them that any candidate hits; among
    annotated boxes "same object" too, the share whose very box was chosen, as MAttNet counts."""
    rule, images = BOX_RULES[options.box_rule], [group.images[0] for group in groups]
    chosen = [each.box for each in chosen_boxes(groups, predictions)]
    right = [group.facts["right"] for group in groups]
    hits = [float(box is not None and rule.hits(box, own)) for box, own in zip(chosen, right, strict=True)]
    bounds = [
        float(any(rule.hits(sides(box), own) for box in ([] if each.boxes is None else each.boxes)))
        for each, own in zip(predictions, right, strict=True)
    ]
    found = {
        "accuracy": Measure("accuracy", hits, images, guess=lambda: _chance(predictions, right, rule.hits)),
        "upper bound": Measure("upper bound", bounds, images),
    }
    if options.boxes == ANNOTATED_BOXES:
        own_boxes = [sides(group.target) for group in groups]
        same = [float(box is not None and _is_same(box, own)) for box, own in zip(chosen, own_boxes, strict=True)]

        found["same object"] = Measure(
            "same object", same, images, guess=lambda: _chance(predictions, own_boxes, _is_same)
        )
    return found


def _is_same(box: Box, own: Box) -> bool:
    return bool(np.allclose(box, own, rtol=0, atol=1e-3))


def _chance(predictions: Sequence[Prediction], right: Sequence[Box], hits: Callable[[Box, Box], bool]) -> float:
    """Share of sentences that a random candidate hits; one without candidates is a miss."""
    total = 0.0
    for each, own in zip(predictions, right, strict=True):
        found = [] if each.boxes is None else [hits(sides(box), own) for box in each.boxes]
        total += sum(found) / max(len(found), 1)
    return total / len(predictions)


def missed_objects(groups: Sequence[TaskGroup], options: ReferringOptions) -> str:
    """A note for people: how many sentences no given candidate hits; "" for none, or boxes of the store."""
    if options.boxes == STORED_BOXES:
        return ""
    rule = BOX_RULES[options.box_rule]
    missed = sum(
        not any(rule.hits(sides(box), each.facts["right"]) for box in candidates_for(each, options).boxes)
        for each in groups
    )
    if not missed:
        return ""
    return f"no candidate hits the object of {plural(missed, 'sentence')} of {len(groups):,} ({rule.words})"


class _Photo(NamedTuple):
    """Facts that all sentences of a photo share: boxes (R, 4), its candidates unless they come from the store, and
    (height, width) if known; `whole` is (1, 4) or (0, 4)."""

    boxes: np.ndarray
    whole: np.ndarray
    candidates: Candidates | None
    image_hw: tuple[int, int] | None


class _Photos:
    """Photos by their numbers, each made once."""

    def __init__(self, files: ReferringFiles, split: str, options: ReferringOptions) -> None:
        self._files, self._options = files, options
        self._adds_annotated = options.boxes == ANNOTATED_BOXES or (options.annotated_in_training and split == TRAIN)
        self._annotated = defaultdict[int, list[Box]](list)
        for each in files.instances.objects.values() if self._adds_annotated else ():
            if options.crowds or not each.is_crowd:
                self._annotated[each.image_id].append(each.box)
        self._made: dict[int, _Photo] = {}

    def of(self, sentence: ReferringSentence) -> _Photo:
        number = sentence.image_id
        if number not in self._made:
            self._made[number] = self._make(sentence)
        return self._made[number]

    def _make(self, sentence: ReferringSentence) -> _Photo:
        number, options = sentence.image_id, self._options
        annotated = corners(self._annotated.get(number, ()))
        image_hw = self._files.instances.image_hw.get(number)
        whole = whole_image_box(sentence.where, image_hw, options)
        if options.boxes == STORED_BOXES:
            return _Photo(annotated, whole, None, image_hw)
        detected = corners((self._files.detections or {}).get(number, ()) if options.boxes == DETECTED_BOXES else ())
        found = candidates_of(sentence.where, detected, annotated, image_hw, options)
        return _Photo(found.regions, whole, found, image_hw)


def _group(sentence: ReferringSentence, photos: _Photos, options: ReferringOptions) -> TaskGroup:
    photo = photos.of(sentence)
    facts: dict[str, Any] = {
        "sent_id": sentence.sent_id,
        "ref_id": sentence.ref_id,
        "split": sentence.split,
        "right": sentence.box,
        "image_hw": photo.image_hw,
        "candidates": photo.candidates,
        "region_targets": {"kind": options.target_of(sentence.split), "inclusive_sides": options.one_pixel_more},
    }
    of_store = photo.candidates is None
    if of_store:
        facts["annotated"] = photo.boxes
    return TaskGroup(
        id=str(sentence.sent_id),
        images=(refer_image_id(sentence.image_id),),
        rows=(text_row(_text(sentence, options.text)),),
        target=corners([sentence.box])[0],
        boxes=() if of_store else (photo.boxes,),
        whole_image=photo.whole[0] if len(photo.whole) else None,
        is_open=of_store or len(photo.boxes) + len(photo.whole) > 0,
        facts=facts,
    )


def _text(sentence: ReferringSentence, form: str) -> str:
    if form == "raw":
        text = sentence.raw
    elif form == "tokens":
        text = " ".join(sentence.tokens)
    else:
        return sentence.sentence
    if not text and sentence.sentence:
        raise ValueError(f"{sentence.where}, sentence {sentence.sent_id}: the file has no {form} of it")
    return text


def stored_regions(group: TaskGroup, boxes: np.ndarray, options: ReferringOptions) -> np.ndarray:
    """(R,) int64, regions of a record that are candidates, for boxes (n, 4) of the store."""
    found = candidates_for(group, options, boxes)
    return found.numbers[found.kinds == DETECTED]


def joined_candidates(
    group: TaskGroup, detected: RegionRecord, annotated: RegionRecord, options: ReferringOptions
) -> JoinedImage:
    """Joins detected candidates and, if the split has some, annotated ones, as ViLBERT's releases join two stores.

    The feature of the whole image is the mean of all detected regions, those that are cut too.

    Args:
        detected, annotated: the records of the photo in the two stores.
    """
    from_store = options.boxes == STORED_BOXES
    found = candidates_for(group, options, detected.boxes if from_store else None)
    own, added = found.kinds == DETECTED, found.kinds == ANNOTATED
    first = found.numbers[own] if from_store else regions_at_boxes(detected, found.boxes[own])
    second = regions_at_boxes(annotated, found.boxes[added])
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(detected, name)[first], getattr(annotated, name)[second]])
        for name in ("boxes", "features", "class_ids", "class_scores")
    }
    both = replace(detected, **fields, attribute_ids=None, attribute_scores=None, class_distribution=None)
    whole = detected.features.astype(np.float32).sum(axis=0) / max(1, detected.num_regions)
    return JoinedImage(both, {place: place for place in range(both.num_regions)}, both.num_regions, whole)


def open_referring(name: str) -> Callable[[Path, ReferringOptions, Sequence[str] | None], DownstreamTask]:
    """Function that opens the data set of a name, a key of `SPLITS`."""

    def open_task(folder: Path, options: ReferringOptions, _labels: Sequence[str] | None) -> DownstreamTask:
        files = read_referring(folder, name, options)

        def read(split: str) -> TaskSplit:
            groups = referring_groups(files, split, options)
            missed = missed_objects(groups, options)
            return TaskSplit(groups, notes=(*files.notes, *((f"{split}: {missed}",) if missed else ())))

        return DownstreamTask(
            name=name,
            form=REGION,
            joined=(lambda group, _image, record, annotated: joined_candidates(group, record, annotated, options))
            if options.annotated_in_training
            else None,
            joins_training_alone=True,
            gives_boxes=options.boxes != STORED_BOXES,
            whole_image=options.whole_image != NONE,
            measured_in_input=options.overlap_in == INPUT,
            regions=(lambda group, _image, record: stored_regions(group, record.boxes, options))
            if options.boxes == STORED_BOXES and options.max_boxes
            else None,
            loss=options.loss,
            read=read,
            train=TRAIN,
            validation="val",
            judge=lambda groups, predictions: referring_scores(groups, predictions, options),
            answers=lambda groups, predictions: map(result_entry, chosen_boxes(groups, predictions)),
            write=write_entries,
            splits=SPLITS[name],
            mirrored=lambda group: replace(mirrored_group(group, options), mirrored=True),
        )

    return open_task


def check_referring(options: ReferringOptions) -> None:
    """Raises ValueError for settings that no run can use."""
    if options.image_feature != SHOWN_REGIONS:
        raise ValueError(
            "image_feature: leave it at shown; on stored features --set layout.whole_image=all makes the mean of all "
            "regions of --store, and from photos --set end_to_end.whole_image chooses the whole image"
        )


def check_stored_referring(options: ReferringOptions) -> None:
    """Raises ValueError for settings that a run on stored features cannot use."""
    if options.overlap_in == INPUT:
        raise ValueError(
            "overlap_in: stored features have no network input to measure in; leave it at photo, or train from photos "
            "with --end-to-end"
        )
