"""Items and result files of referring expressions: VL-BERT (data_refcoco), both ViLBERT releases (data_refer_*).

The releases' rules are options of `ReferringOptions`. Here stands only how a release lays an item out, and how a case
shows it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, close, failed, guarded, within
from harness.finetuning.item_files import (
    BATCH,
    FILES,
    ITEM_TOLERANCE,
    Item,
    at,
    filled,
    item_checks,
    json_of,
    leaves,
    padded,
    photo_edges,
    photo_pixels,
    same_json,
    size_option,
    write_item_file,
    write_pickle,
)
from harness.finetuning.prepared_photos import candidate_targets, image_feature, prepare_candidates
from harness.tolerances import METRICS, Allclose
from roibeam.extraction.network.config import DetectorConfig
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
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

REFS = f"{FILES}refs.json"
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


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    with tempfile.TemporaryDirectory() as folder:
        if f"{FILES}annotations.json" in arrays:
            yield from _stored_checks(arrays, Path(folder))
        else:
            yield from _photo_checks(arrays, Path(folder))


def prediction_checks(arrays: Arrays) -> Iterator[Check]:
    """Of the part of a case of result files that is of referring expressions (ViLBERT, task_utils.py)."""
    scores = torch.from_numpy(arrays.take_finite("in/region_logits", None, None, 1)[..., 0].astype(np.float64))
    overlaps = arrays.take_finite("in/region_iou", *scores.shape, 1)[..., 0]
    ids = arrays.take("in/question_ids", len(scores))
    slots = [best_choice(own.tolist()) for own in scores]
    entries = [
        {"id": int(number), "target": slot, "IOU": float(of_boxes[slot])}
        for number, slot, of_boxes in zip(ids, slots, overlaps, strict=True)
    ]
    yield same_json(arrays, "out/refer_result_json", entries)
    yield same_json(arrays, "out/refer_others_json", [])
    targets = torch.from_numpy(overlaps.astype(np.float64))
    loss = region_bce(scores, targets, torch.ones_like(targets, dtype=torch.bool), per=_STORED.loss).mean
    hits = sum(entry["IOU"] > HALF for entry in entries)
    want = arrays.take("out/refer_loss_score_n", 3)
    yield close("out/refer_loss_score_n", np.array([float(loss), hits, len(entries)]), want, Allclose(METRICS.float32))


# --- photos with boxes ---


def _photo_checks(arrays: Arrays, folder: Path) -> Iterator[Check]:
    files = _photo_files(arrays, folder)
    tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", folder / "vocab.txt"))
    config = photo_edges(arrays.take_json_object("config"))
    for mode, items in leaves(arrays).items():
        if mode.removesuffix(_FLIPPED) in _PHOTO_MODES:  # another is told as compared with nothing
            made = _PhotoMode(arrays, files, mode, tokenizer, config)
            yield from guarded(f"out/{mode}", partial(_mode_checks, arrays, items, made))
    if "out/accuracy_iou" in arrays:
        pairs = zip(*(arrays.take_finite(f"in/accuracy_{who}_boxes", None, 4) for who in ("pred", "gt")), strict=True)
        ours = np.array([corner_iou(sides(first), sides(second)) for first, second in pairs])
        yield close("out/accuracy_iou", ours, arrays.take("out/accuracy_iou"), ITEM_TOLERANCE)


def _mode_checks(
    arrays: Arrays, items: Mapping[str, Mapping[str, str]], made: _PhotoMode | _StoredMode
) -> Iterator[Check]:
    """All items of a way to read the data set."""
    for number, named in items.items():
        yield from item_checks(arrays, named, made.batch() if number == BATCH else made.item(int(number)))


def _photo_files(arrays: Arrays, folder: Path) -> ReferringFiles:
    detections = [name for name in arrays.names if name.startswith(FILES) and name.endswith(DETECTIONS_NAME)]
    instances = [name for name in arrays.names if name.startswith(f"{FILES}annotations/instances_")]
    if len(detections) != 1 or len(instances) != 1:
        raise ValueError(f"{arrays.path.name}: expected one file of instances and one of detections")
    return referring_files(
        write_pickle(json_of(arrays, REFS), folder / "refs.p"),
        write_item_file(arrays, instances[0], folder / "instances.json"),
        write_item_file(arrays, detections[0], folder / DETECTIONS_NAME),
    )


class _PhotoMode:
    """The items of one way to read the data set, laid out as VL-BERT's collation does."""

    def __init__(
        self, arrays: Arrays, files: ReferringFiles, mode: str, tokenizer: CaptionTokenizer, config: DetectorConfig
    ) -> None:
        kind = mode.removesuffix(_FLIPPED)
        self._arrays, self._tokenizer, self._config = arrays, tokenizer, config
        self._flip, self._split = kind != mode, TRAIN
        if kind == "test":
            self._split = next((each.split for each in files.sentences if each.split != TRAIN), TRAIN)
        self._options = replace(_WITH_PHOTO, **_PHOTO_MODES[kind])
        self._groups = referring_groups(files, self._split, self._options)
        self._hw = files.instances.image_hw

    def item(self, number: int) -> Item:
        """Leaves of one item."""
        photo, pieces, label = self._made(number)
        height, width = photo.input_hw
        return {
            "image": photo.pixels,
            "boxes": photo.boxes,
            "im_info": torch.cat([torch.tensor([width, height]), photo.scale_xy]),
            "expression": pieces,
            "label": label,
        }

    def batch(self) -> Item:
        """Leaves of all items, padded."""
        items = [self._made(number) for number in range(len(self._groups))]
        photos = collate_photos([photo for photo, _, _ in items])
        return {
            "image": photos.pixels,
            "boxes": photos.boxes,
            "im_info": torch.cat([photos.input_hw.flip(-1), photos.scale_xy], dim=1),
            "expression": padded([pieces for _, pieces, _ in items], 0),
            "label": padded([label.numpy() for _, _, label in items], _NO_LABEL),
        }

    def _made(self, number: int) -> tuple[PreparedPhoto, np.ndarray, Tensor]:
        group = at(self._groups, number)
        if self._flip:
            group = mirrored_group(group, self._options)
        image_id = int(group.images[0].rsplit("_", 1)[-1])
        found = prepare_candidates(
            photo_pixels(self._arrays, str(image_id), *self._hw[image_id]),
            candidates_for(group, self._options).boxes,
            group.target,
            self._config,
            CONVENTIONS["vlbert-e2e"],
            flip=self._flip,
        )
        label = candidate_targets(found.photo.boxes, found.right, self._options, split=self._split)
        return found.photo, self._tokenizer.encode(group.rows[0].parts[0].text).ids[1:-1], label


# --- stored regions ---


def _stored_checks(arrays: Arrays, folder: Path) -> Iterator[Check]:
    options = arrays.take_json_object("config")
    most, pieces = options.get("max_region_num"), size_option(options, "max_seq_length")
    if not isinstance(most, dict):
        raise ArrayError("config", "needs max_region_num, by mode")
    # The first release fails where annotated boxes do not fit, and cuts off the [SEP] of a long text.
    is_first = "first" in arrays.path.stem
    files = _stored_files(arrays, folder)
    tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", folder / "vocab.txt"))
    items = leaves(arrays)
    for mode in most:
        rules = replace(_STORED, max_boxes=size_option(most, mode, 1), too_many="refuse" if is_first else "last")
        made = _StoredMode(arrays, files, mode, tokenizer, rules, pieces, keeps_end=not is_first)
        if mode not in items:
            yield _refusal(f"out/{mode}", made)
        else:
            yield from guarded(f"out/{mode}", partial(_mode_checks, arrays, items[mode], made))


def _refusal(name: str, made: _StoredMode) -> Check:
    """The release raised: so must ours, for at least one item."""
    for number in range(made.count):
        try:
            made.item(number)
        except ValueError:
            return within(name, 0.0, 0, "must be refused")
    return failed(name, "the official code raised, and ours takes every item")


def _stored_files(arrays: Arrays, folder: Path) -> ReferringFiles:
    """The case has annotations alone; sizes of photos stand beside its boxes."""
    sizes = [
        {"id": int(name.removeprefix("image/").removesuffix(".size_wh")), "width": int(wide), "height": int(high)}
        for name in arrays.names
        if name.startswith("image/") and name.endswith(".size_wh")
        for wide, high in [arrays.take(name, 2)]
    ]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": sizes, "annotations": json_of(arrays, f"{FILES}annotations.json")}), "utf-8")
    return referring_files(write_pickle(json_of(arrays, REFS), folder / "refs.p"), str(path))


class _StoredMode:
    """The items of one way to read the data set, laid out and padded as ViLBERT does.

    Args:
        options: with the limit of this mode.
        max_pieces: that a text is padded to.
        keeps_end: whether a longer text keeps its [SEP].
    """

    def __init__(
        self,
        arrays: Arrays,
        files: ReferringFiles,
        mode: str,
        tokenizer: CaptionTokenizer,
        options: ReferringOptions,
        max_pieces: int,
        *,
        keeps_end: bool,
    ) -> None:
        self._arrays, self._tokenizer, self._options = arrays, tokenizer, options
        self._split = TRAIN if mode.startswith(TRAIN) else mode
        self._max_pieces, self._keeps_end = max_pieces, keeps_end
        self._groups = referring_groups(files, self._split, options)

    @property
    def count(self) -> int:
        return len(self._groups)

    def batch(self) -> Item:
        """Cases have none of these."""
        raise ValueError("a batch of items, and these are shown one by one")

    def item(self, number: int) -> Item:
        """Leaves of one item.

        Raises:
            ValueError: for an item that the options refuse.
        """
        group = at(self._groups, number)
        image_id = int(group.images[0].rsplit("_", 1)[-1])
        stored = self._arrays.take_finite(f"image/{image_id}.boxes", None, 4)
        found = candidates_for(group, self._options, stored)
        boxes, mask = torch.from_numpy(found.boxes), torch.ones(1, len(found.boxes), dtype=torch.bool)
        features = self._features(image_id, found, len(stored))
        targets = candidate_targets(boxes, torch.from_numpy(group.target), self._options, split=self._split)
        where = region_locations(boxes[None], torch.tensor([group.facts["image_hw"]], dtype=torch.float32), mask)[0]
        slots = self._options.max_boxes
        text = self._text(group)
        return {
            "features_first8": filled(features[:, :8].numpy(), slots),
            "features_row_sum": filled(features.double().sum(dim=1).numpy(), slots),
            "spatials": filled(where.numpy(), slots),
            "image_mask": filled(mask[0].long().numpy(), slots),
            "target": filled(targets[:, None].numpy(), slots),
            "text": filled(text, self._max_pieces),
            "input_mask": filled(np.ones(len(text), np.int64), self._max_pieces),
            "segment_ids": np.zeros(self._max_pieces, np.int64),
            "image_id": np.array(image_id),
        }

    def _features(self, image_id: int, found: Candidates, num_stored: int) -> Tensor:
        """(C, D): of the whole photo the mean of what was detected, all of it, whatever is cut."""
        detected = torch.from_numpy(self._arrays.take_finite(f"image/{image_id}.features", num_stored, None))
        annotated = torch.from_numpy(self._arrays.take_finite(f"gt_image/{image_id}.features", None, detected.shape[1]))
        whole = image_feature(detected, self._options)
        assert whole is not None  # as the options say
        kinds = {WHOLE: whole[None], DETECTED: detected, ANNOTATED: annotated}
        return torch.stack([kinds[int(kind)][place] for kind, place in zip(found.kinds, found.numbers, strict=True)])

    def _text(self, group: TaskGroup) -> np.ndarray:
        ids = self._tokenizer.encode(group.rows[0].parts[0].text).ids
        if self._keeps_end and len(ids) > self._max_pieces:
            return np.append(ids[: self._max_pieces - 1], ids[-1])
        return ids[: self._max_pieces]
