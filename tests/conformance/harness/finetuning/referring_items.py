"""Items and result files of referring expressions: VL-BERT (data_refcoco), both ViLBERT releases (data_refer_*).

The releases' rules are options of `ReferringOptions`. Here stands only how a release lays an item out, and how a case
shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.case_files import ArrayError
from harness.checks import Check, close, failed, within
from harness.finetuning.item_files import (
    BATCH,
    FILES,
    ITEM_TOLERANCE,
    Item,
    ItemCase,
    at,
    cut_text,
    filled,
    padded,
    region_leaves,
)
from harness.finetuning.prepared_photos import candidate_targets, image_feature, prepare_candidates
from harness.tolerances import METRICS, Allclose
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import PreparedPhoto, collate_photos
from roibeam.model.common.regions import region_locations
from roibeam.model.task_losses import region_bce
from roibeam.pipelines.finetuning.metrics.referring import HALF, corner_iou
from roibeam.pipelines.finetuning.metrics.vcr import best_choice
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.scored_tasks import DETECTIONS_NAME
from roibeam.pipelines.finetuning.tasks.referring import (
    ANNOTATED,
    DETECTED,
    TRAIN,
    WHOLE,
    Candidates,
    ReferringFiles,
    ReferringOptions,
    candidates_for,
    mirrored_group,
    referring_files,
    referring_groups,
    sides,
)

_ANNOTATIONS = f"{FILES}annotations.json"
_FLIPPED = "_flip"
_NO_LABEL = -1.0  # padding of the release
# jackroos/VL-BERT refcoco.py; which boxes and split belong to the name of a mode.
_WITH_PHOTO = ReferringOptions(
    text="tokens", crowds=True, whole_image="last_pixel", one_pixel_more=True, overlap_in="input", box_rule="vl-bert"
)
_PHOTO_MODES: Mapping[str, Mapping[str, Any]] = {
    "gt": {"boxes": "annotated"},
    "proposal": {"boxes": "detected"},
    "proposal_and_gt": {"boxes": "detected", "annotated_in_training": True},
    "test": {"boxes": "detected"},
}
# refer_expression_dataset.py of vilbert_beta and vilbert-multi-task.
_STORED = ReferringOptions(
    text="raw",
    boxes="stored",
    annotated_in_training=True,
    crowds=True,
    whole_image="size",
    target="iou",
    judged_target="overlap",
    one_pixel_more=True,
    loss="rows",
    image_feature="detected",
    box_rule="vilbert",
)


def checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items."""
    return (_stored_checks if _ANNOTATIONS in case else _photo_checks)(case)


def prediction_checks(case: ItemCase) -> Iterator[Check]:
    """Of the part of a case of result files that is of referring expressions (ViLBERT, task_utils.py)."""
    scores = torch.from_numpy(case.take_finite("in/region_logits", None, None, 1)[..., 0].astype(np.float64))
    overlaps = case.take_finite("in/region_iou", *scores.shape, 1)[..., 0]
    ids = case.take("in/question_ids", len(scores))
    slots = [best_choice(own.tolist()) for own in scores]
    entries = [
        {"id": int(number), "target": slot, "IOU": float(of_boxes[slot])}
        for number, slot, of_boxes in zip(ids, slots, overlaps, strict=True)
    ]
    yield case.same_json("out/refer_result_json", entries)
    yield case.same_json("out/refer_others_json", [])
    targets = torch.from_numpy(overlaps.astype(np.float64))
    loss = region_bce(scores, targets, torch.ones_like(targets, dtype=torch.bool), per=_STORED.loss).mean
    hits = sum(entry["IOU"] > HALF for entry in entries)
    want = case.take("out/refer_loss_score_n", 3)
    yield close("out/refer_loss_score_n", np.array([float(loss), hits, len(entries)]), want, Allclose(METRICS.float32))


def _image_number(group: TaskGroup) -> int:
    return int(group.images[0].rsplit("_", 1)[-1])


# --- photos with boxes ---


def _photo_checks(case: ItemCase) -> Iterator[Check]:
    instances = case.written(".json", f"{FILES}annotations/instances_")
    files = referring_files(case.pickled("refs.json", "refs.p"), instances, case.written(DETECTIONS_NAME))
    for mode in case.leaves():
        if mode.removesuffix(_FLIPPED) in _PHOTO_MODES:  # another is told as compared with nothing
            yield from case.mode_checks(mode, partial(_PhotoMode, case, files, mode))
    if "out/accuracy_iou" in case:
        pairs = zip(*(case.take_finite(f"in/accuracy_{who}_boxes", None, 4) for who in ("pred", "gt")), strict=True)
        ours = np.array([corner_iou(sides(first), sides(second)) for first, second in pairs])
        yield close("out/accuracy_iou", ours, case.take("out/accuracy_iou"), ITEM_TOLERANCE)


class _PhotoMode:
    """The items of one way to read the data set, laid out as VL-BERT's collation does."""

    def __init__(self, case: ItemCase, files: ReferringFiles, mode: str) -> None:
        kind = mode.removesuffix(_FLIPPED)
        self._case, self._flip, self._split = case, kind != mode, TRAIN
        if kind == "test":
            self._split = next((each.split for each in files.sentences if each.split != TRAIN), TRAIN)
        self._options = replace(_WITH_PHOTO, **_PHOTO_MODES[kind])
        self._groups = referring_groups(files, self._split, self._options)
        self._hw = files.instances.image_hw

    def __call__(self, number: str) -> Item:
        """Leaves of one item, or of all, padded."""
        numbers = range(len(self._groups)) if number == BATCH else [int(number)]
        photos, pieces, labels = zip(*map(self._made, numbers), strict=True)
        if number == BATCH:
            batch = collate_photos(photos)
            pixels, boxes, sizes, scales = batch.pixels, batch.boxes, batch.input_hw.flip(-1), batch.scale_xy
            expression, label = padded(pieces, 0), padded([each.numpy() for each in labels], _NO_LABEL)
        else:
            (photo,), (expression,), (label,) = photos, pieces, labels
            pixels, boxes, scales = photo.pixels, photo.boxes, photo.scale_xy
            sizes = torch.tensor(photo.input_hw[::-1])
        info = torch.cat([sizes, scales], dim=-1)
        return {"image": pixels, "boxes": boxes, "im_info": info, "expression": expression, "label": label}

    def _made(self, number: int) -> tuple[PreparedPhoto, np.ndarray, Tensor]:
        group = at(self._groups, number)
        if self._flip:
            group = mirrored_group(group, self._options)
        image_id = _image_number(group)
        found = prepare_candidates(
            self._case.pixels(str(image_id), *self._hw[image_id]),
            candidates_for(group, self._options).boxes,
            group.target,
            self._case.edges,
            CONVENTIONS["vlbert-e2e"],
            flip=self._flip,
        )
        label = candidate_targets(found.photo.boxes, found.right, self._options, split=self._split)
        return found.photo, self._case.tokenizer.encode(group.rows[0].parts[0].text).ids[1:-1], label


# --- stored regions ---


def _stored_checks(case: ItemCase) -> Iterator[Check]:
    most = case.options.get("max_region_num")
    if not isinstance(most, dict):
        raise ArrayError("config", "needs max_region_num, by mode")
    files = _stored_files(case)
    for mode in most:
        slots = case.size(mode, 1, most)
        # The first release fails where annotated boxes do not fit.
        rules = replace(_STORED, max_boxes=slots, too_many="refuse" if case.is_first else "last")
        made = partial(_StoredMode, case, files, mode, rules)
        if mode in case.leaves():
            yield from case.mode_checks(mode, made)
        else:
            yield _refusal(f"out/{mode}", made())


def _refusal(name: str, made: _StoredMode) -> Check:
    """The release raised: so must ours, for at least one item."""
    for number in range(len(made.groups)):
        try:
            made(str(number))
        except ValueError:
            return within(name, 0.0, 0, "must be refused")
    return failed(name, "the official code raised, and ours takes every item")


def _stored_files(case: ItemCase) -> ReferringFiles:
    """The case has annotations alone; sizes of photos stand beside its boxes."""
    names = [name for name in case.below("image/") if name.endswith(".size_wh")]
    sizes = [dict(zip(("width", "height"), case.take(f"image/{name}", 2).tolist(), strict=True)) for name in names]
    images = [{"id": int(name.removesuffix(".size_wh")), **size} for name, size in zip(names, sizes, strict=True)]
    path = case.folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": case.json(_ANNOTATIONS)}), "utf-8")
    return referring_files(case.pickled("refs.json", "refs.p"), str(path))


class _StoredMode:
    """The items of one way to read the data set, laid out and padded as ViLBERT does.

    Args:
        options: with the limit of this mode.
    """

    def __init__(self, case: ItemCase, files: ReferringFiles, mode: str, options: ReferringOptions) -> None:
        self._case, self._options = case, options
        self._split = TRAIN if mode.startswith(TRAIN) else mode
        self.groups = referring_groups(files, self._split, options)

    def __call__(self, number: str) -> Item:
        """Leaves of one item. Raises ValueError for an item that the options refuse."""
        case, group = self._case, at(self.groups, int(number))
        image_id, pieces, slots = _image_number(group), case.size("max_seq_length"), self._options.max_boxes
        stored = case.take_finite(f"image/{image_id}.boxes", None, 4)
        found = candidates_for(group, self._options, stored)
        boxes, mask = torch.from_numpy(found.boxes), torch.ones(1, len(found.boxes), dtype=torch.bool)
        features = self._features(image_id, found, len(stored))
        targets = candidate_targets(boxes, torch.from_numpy(group.target), self._options, split=self._split)
        where = region_locations(boxes[None], torch.tensor([group.facts["image_hw"]], dtype=torch.float32), mask)[0]
        ids = case.tokenizer.encode(group.rows[0].parts[0].text).ids
        text = ids[:pieces] if case.is_first else cut_text(ids, pieces)  # which cuts off the [SEP] of a long one
        return {
            **region_leaves(features.numpy(), where.numpy(), slots),
            "target": filled(targets[:, None].numpy(), slots),
            "text": filled(text, pieces),
            "input_mask": filled(np.ones(len(text), np.int64), pieces),
            "segment_ids": np.zeros(pieces, np.int64),
            "image_id": np.array(image_id),
        }

    def _features(self, image_id: int, found: Candidates, num_stored: int) -> Tensor:
        """(C, D): of the whole photo the mean of what was detected, all of it, whatever is cut."""
        detected = torch.from_numpy(self._case.take_finite(f"image/{image_id}.features", num_stored, None))
        annotated = self._case.take_finite(f"gt_image/{image_id}.features", None, detected.shape[1])
        whole = image_feature(detected, self._options)
        assert whole is not None  # as the options say
        kinds = {WHOLE: whole[None], DETECTED: detected, ANNOTATED: torch.from_numpy(annotated)}
        return torch.stack([kinds[int(kind)][place] for kind, place in zip(found.kinds, found.numbers, strict=True)])
