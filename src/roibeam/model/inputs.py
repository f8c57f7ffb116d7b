"""Batch and output of every model and every task: `VLBatch` in, `VLOutput` out.

`VLBatch.from_regions` takes regions as a store's batch, or a list of records.

Shapes: B rows, Q texts and I images (of as many as rows, unless rows share some), T text pieces, R regions, D feature
width, G global feature width, C region labels (background included), N predicted regions of all rows, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.messages import check_lists, short_repr
from roibeam.model.layer_states import LayerStates


class HasRegions(Protocol):
    """A batch of a store as arrays, a `RegionBatch`; `region_mask` is None if it is ragged."""

    @property
    def image_ids(self) -> Sequence[str]: ...

    @property
    def features(self) -> np.ndarray | None: ...

    @property
    def boxes(self) -> np.ndarray: ...

    @property
    def region_mask(self) -> np.ndarray | None: ...

    @property
    def image_hw(self) -> np.ndarray: ...


class HasRecord(Protocol):
    """One record of a store, a `RegionRecord`."""

    @property
    def image_id(self) -> str: ...

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def boxes(self) -> np.ndarray: ...

    @property
    def features(self) -> np.ndarray: ...


def region_tensors(regions: HasRegions | Sequence[HasRecord]) -> dict[str, Any]:
    """Tensors by name, without those that are None; features as float32: torch reads no numpy array of bfloat16."""
    if isinstance(regions, Sequence):
        return _padded_records(regions)
    if not hasattr(regions, "region_mask"):
        raise _not_regions(regions)
    features = None if regions.features is None else np.asarray(regions.features, np.float32)
    arrays = {"features": features, "boxes": regions.boxes, "region_mask": regions.region_mask}
    arrays["image_hw"] = regions.image_hw
    found = {name: torch.as_tensor(array) for name, array in arrays.items() if array is not None}
    return {"image_ids": regions.image_ids, **found}


def _padded_records(records: Sequence[HasRecord]) -> dict[str, Any]:
    for record in records:
        if not all(hasattr(record, name) for name in ("image_id", "height", "width", "boxes", "features")):
            raise _not_regions(record)
    widths = sorted({record.features.shape[1] for record in records})
    if len(widths) != 1:
        raise ValueError(f"VLBatch.from_regions: regions are {len(records)} records with features of widths {widths}")
    counts = [len(record.boxes) for record in records]
    features = np.zeros((len(records), max(counts), widths[0]), np.float32)
    boxes = np.zeros((len(records), max(counts), 4), np.float32)
    for row, (record, count) in enumerate(zip(records, counts, strict=True)):
        features[row, :count], boxes[row, :count] = record.features, record.boxes
    return {
        "image_ids": [record.image_id for record in records],
        "features": torch.from_numpy(features),
        "boxes": torch.from_numpy(boxes),
        "region_mask": torch.arange(max(counts)) < torch.tensor(counts)[:, None],
        "image_hw": torch.tensor([[record.height, record.width] for record in records]),
    }


def _not_regions(found: object) -> ValueError:
    kind = type(found).__name__
    hints = {
        "RegionRecord": "; write [record]",
        "Regions": "; a detector's Regions do not have the photo's size, extract_regions gives records",
    }
    return ValueError(
        f"VLBatch.from_regions: regions must be a store's batch, tensors by name or a list of records, got "
        f"{kind}{hints.get(kind, '')}"
    )


_NO_IDS = torch.empty(0)
# Label of a position that is not predicted: torch.nn.functional.cross_entropy skips it by default.
IGNORE_INDEX = -100

# Axes of each field, see the top of the file, and its type.
_FIELDS = {
    "text_ids": ("QT", "long"),
    "text_mask": ("QT", "bool"),
    "text_segments": ("QT", "long"),
    "region_features": ("IRD", "float"),
    "region_boxes": ("IR4", "float"),
    "region_mask": ("IR", "bool"),
    "image_hw": ("I2", "float"),
    "masked_regions": ("IR", "bool"),
    "whole_image_features": ("ID", "float"),
    "global_features": ("IG", "float"),
    "text_labels": ("BT", "long"),
    "region_targets": ("BRC", "float"),
    "region_target_mask": ("BR", "bool"),
    "region_feature_targets": ("BRD", "float"),
    "match_labels": ("B", "long"),
    "task_ids": ("Q", "long"),
    "region_images": ("IR", "long"),
    "region_classes": ("IR", "long"),
    "aligned_words": ("BRA", "long"),
    "phrase_positions": ("BP", "long"),
    "text_only": ("B", "bool"),
    "row_texts": ("B", "long"),
    "row_images": ("B", "long"),
    "read_pieces": ("BT", "bool"),
    "read_regions": ("BR", "bool"),
}
_FEATURES = {"region_features", "whole_image_features", "global_features"}


@dataclass(frozen=True, eq=False, kw_only=True)
class VLBatch:
    """Captions with the regions of their images, padded at the end of each row.

    Rows may share a text or an image: a question has four answers and one image, a caption is scored with a thousand
    images. Then texts (Q) and images (I) are fewer than rows, and `row_texts` and `row_images` map rows to them.

    Attributes:
        text_ids: (Q, T) long, word pieces with the tokenizer's own first and last token.
        text_mask: (Q, T) bool, True at real pieces; these come first in every row.
        text_segments: (Q, T) long.
        region_features: (I, R, D) float, as measured, also where the region is masked.
        region_boxes: (I, R, 4) float, x1 y1 x2 y2 in pixels of the original image.
        region_mask: (I, R) bool, True at real regions; R may be 0. Models add the whole image themselves.
        image_hw: (I, 2) float, height then width of the original image in pixels.
        masked_regions: (I, R) bool, True if the content of the region is hidden from the model.
        whole_image_features: (I, D) float, one feature for the whole image, masked regions already left out of it;
            None lets the model take the mean of the regions.
        global_features: (I, G) float, features of the whole image from another network, for a model that reads them
            beside its regions.
        text_labels: (B, T) long, piece to predict or `IGNORE_INDEX`.
        region_targets: (B, R, C) float, class distribution to predict, or the feature (then C = D) for a model that
            regresses it; or (N, C), those of the predicted regions alone, row after row: class distributions are wide,
            and few regions are predicted. `targets_of` reads both.
        region_target_mask: (B, R) bool, True where `region_targets` counts; present exactly when they are. A region can
            be predicted without being masked.
        region_feature_targets: (B, R, D) float, the stored features, for a model that predicts them beside classes;
            None if `region_features` are those.
        match_labels: (B,) long, 1 = the caption belongs to the image, 0 = it does not.
        task_ids: (Q,) long, task of the row, for models with task tokens.
        region_images: (I, R) long, image of the row that a region is from, if a row has several; 0 is the first.
        region_classes: (I, R) long, the known class of each region, for a model with a token for each; 0 is the
            whole image's, and numbers outside the classes count as the nearest one.
        aligned_words: (B, R, A) long, positions of the text pieces that name a region, -1 where there are no more.
        phrase_positions: (B, P) long, the text piece that stands for each phrase of the row, or T + n for region n, of
            models whose text and regions have one width; -1 where there are no more. Read by the grounding head alone.
        text_only: (B,) bool, True if the row has no image: no region, and `image_hw` means nothing.
        row_texts: (B,) long, the text of each row; None if row and text number are the same (Q = B).
        row_images: (B,) long, the image of each row; None if row and image number are the same (I = B).
        read_pieces, read_regions: (B, T) and (B, R) bool, True where the last state is read; None if all are. Models
            leave the other states out of their last layers, and they have no meaning.
        sample_ids: names of the rows in an error message; empty or B names.
        draw_seeds: one for each row, for a model's own random draws in a loss (ViLBERT's contrastive negatives), so
            that a row draws the same in any batch; empty if the caller passes a generator, or nothing is drawn.

    Raises:
        ValueError: naming the field, if a shape or dtype is not as above.
    """

    text_ids: Tensor
    text_mask: Tensor
    text_segments: Tensor
    region_features: Tensor
    region_boxes: Tensor
    region_mask: Tensor
    image_hw: Tensor
    masked_regions: Tensor
    whole_image_features: Tensor | None = None
    global_features: Tensor | None = None
    text_labels: Tensor | None = None
    region_targets: Tensor | None = None
    region_target_mask: Tensor | None = None
    region_feature_targets: Tensor | None = None
    match_labels: Tensor | None = None
    task_ids: Tensor | None = None
    region_images: Tensor | None = None
    region_classes: Tensor | None = None
    aligned_words: Tensor | None = None
    phrase_positions: Tensor | None = None
    text_only: Tensor | None = None
    row_texts: Tensor | None = None
    row_images: Tensor | None = None
    read_pieces: Tensor | None = None
    read_regions: Tensor | None = None
    sample_ids: tuple[str, ...] = ()
    draw_seeds: tuple[int, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_lists(self, "sample_ids")
        sizes: dict[str, int] = {"4": 4, "2": 2}
        for name, (axes, kind) in _FIELDS.items():
            tensor = getattr(self, name)
            if tensor is not None:
                compact = name == "region_targets" and tensor.ndim == 2
                _check_tensor(name, tensor, "NC" if compact else self._axes(axes), kind, sizes)
        self._check_sharing()
        for one, other in (("region_targets", "region_target_mask"), ("read_pieces", "read_regions")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"VLBatch: {one} and {other} come together or not at all")
        for name in ("sample_ids", "draw_seeds"):
            given = len(getattr(self, name))
            if given not in (0, self.batch_size):
                raise ValueError(f"VLBatch: {given} {name} for {self.batch_size} rows")

    @classmethod
    def from_regions(
        cls,
        tokens: Mapping[str, Tensor],
        regions: Mapping[str, Any] | HasRegions | Sequence[HasRecord],
        **others: Tensor,
    ) -> VLBatch:
        """Texts from a tokenizer beside the regions of their images, from `FeatureStore.get_batch` or a `DataLoader`
        over a `RegionDataset`. Raises ValueError for missing fields, and as `check_values`.

        Args:
            tokens: of transformers' tokenizers, padded on the right: `input_ids`, `attention_mask`, and optionally
                `token_type_ids`, each (B, T).
            regions: a padded batch of a store: `features` (any floats, which become float32), `boxes`, `region_mask`,
                `image_hw`, and `image_ids` where there are some; tensors by name, or a `RegionBatch` of arrays. Or a
                list of `RegionRecord`s, which are padded.
            others: more fields, such as `text_labels`, `match_labels` or `masked_regions`; by default none is masked.
        """
        regions = regions if isinstance(regions, Mapping) else region_tensors(regions)
        if not isinstance(tokens.get("input_ids", _NO_IDS), Tensor):
            raise ValueError(
                "VLBatch.from_regions: tokens are lists; call the tokenizer with padding=True, return_tensors='pt'"
            )
        for what, given, needed in (
            ("tokens", tokens, ("input_ids", "attention_mask")),
            ("regions", regions, ("features", "boxes", "region_mask", "image_hw")),
        ):
            if missing := [name for name in needed if name not in given]:
                raise ValueError(f"VLBatch.from_regions: {what} have no {', '.join(missing)}; got {', '.join(given)}")
        mask = regions["region_mask"]
        others = {"masked_regions": torch.zeros_like(mask)} | others
        made = cls(
            text_ids=tokens["input_ids"],
            text_mask=tokens["attention_mask"].bool(),
            text_segments=tokens.get("token_type_ids", torch.zeros_like(tokens["input_ids"])),
            region_features=regions["features"].float(),
            region_boxes=regions["boxes"].float(),
            region_mask=mask,
            image_hw=regions["image_hw"].float(),
            sample_ids=tuple(regions.get("image_ids", ())),
            **others,  # type: ignore[arg-type]
        )
        made.check_values()
        return made

    def check_values(self) -> None:
        """Raises ValueError for values that no field may hold, in batches that are made by hand: a batch checks shapes
        and dtypes by itself, but values only here, because that would wait for a GPU."""
        if bool((self.text_mask[:, 1:] & ~self.text_mask[:, :-1]).any()):
            raise ValueError("VLBatch: text_mask has padding before a real piece; pad texts on the right")
        if self.text_labels is not None and bool((self.text_labels.ne(IGNORE_INDEX) & ~self.rows_text_mask).any()):
            raise ValueError(f"VLBatch: text_labels has a label at padding; use {IGNORE_INDEX} for none")
        if self.region_target_mask is not None and bool((self.region_target_mask & ~self.rows_region_mask).any()):
            raise ValueError("VLBatch: region_target_mask is True at padding, where there is no region to predict")
        if self.match_labels is not None:
            known = torch.tensor([0, 1, IGNORE_INDEX], device=self.match_labels.device)
            if not bool(torch.isin(self.match_labels, known).all()):
                raise ValueError(
                    f"VLBatch: match_labels must be 0, 1 or {IGNORE_INDEX}, got {self.match_labels.tolist()}"
                )
        for name in _FIELDS:
            tensor = getattr(self, name)
            if tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(f"VLBatch: {name} holds NaN or infinity")
        self._check_boxes()

    def _check_boxes(self) -> None:
        has_image = self.region_mask.any(dim=1)
        if not bool(has_image.any()):
            return
        image_hw, boxes = self.image_hw[has_image], self.region_boxes[has_image]
        if bool((image_hw < 1).any()):
            raise ValueError(f"VLBatch: image_hw must be heights and widths in pixels, got {image_hw.tolist()[:4]}")
        real = self.region_mask[has_image]
        limits = image_hw.flip(-1).repeat(1, 2)[:, None].expand_as(boxes)[real]
        boxes = boxes[real]
        if bool((boxes < -1).any() or (boxes > limits + 1).any()):
            raise ValueError(
                "VLBatch: region_boxes lie outside their images; they are x1 y1 x2 y2 in pixels, image_hw is height "
                "then width"
            )
        if float(boxes.max()) <= 1 < float(limits.min()):
            raise ValueError("VLBatch: region_boxes lie in 0..1; they are pixels of the original image, not shares")
        if bool((boxes[:, 2:] < boxes[:, :2]).any()):
            raise ValueError("VLBatch: region_boxes have x2 < x1 or y2 < y1; they are x1 y1 x2 y2, not x y w h")

    def _axes(self, axes: str) -> str:
        """Axes without sharing: texts and images are as many as rows, unless rows share them."""
        axes = axes if self.row_texts is not None else axes.replace("Q", "B")
        return axes if self.row_images is not None else axes.replace("I", "B")

    def _check_sharing(self) -> None:
        for name, shared, count in (
            ("row_texts", self.row_texts, len(self.text_ids)),
            ("row_images", self.row_images, len(self.region_mask)),
        ):
            if shared is None:
                continue
            if self.text_only is not None:
                raise ValueError(f"VLBatch: {name} and text_only do not go together")
            if len(shared) and not 0 <= int(shared.min()) <= int(shared.max()) < count:
                raise ValueError(f"VLBatch: {name} must be from 0 to {count - 1}, got {shared.tolist()}")

    @property
    def batch_size(self) -> int:
        rows = self.row_images if self.row_texts is None else self.row_texts
        return len(self.text_ids) if rows is None else len(rows)

    @property
    def rows_text_mask(self) -> Tensor:
        """(B, T), `text_mask` of each row's text."""
        return self.text_mask if self.row_texts is None else self.text_mask[self.row_texts]

    @property
    def rows_region_mask(self) -> Tensor:
        """(B, R), `region_mask` of each row's image."""
        return self.images_to_rows(self.region_mask)

    def read_positions(self, before: int = 0, after: int = 0) -> Tensor | None:
        """(B, T + before + R + after) bool, `read_pieces` and `read_regions` of one sequence, with elements before and
        after the regions that are not read; None if all are read."""
        if self.read_pieces is None or self.read_regions is None:
            return None
        return torch.cat([self.read_pieces, functional.pad(self.read_regions, (before, after))], dim=1)

    def images_to_rows(self, of_images: Tensor) -> Tensor:
        """(B, ...) from (I, ...): values of each image, once for every row of it."""
        return of_images if self.row_images is None else of_images[self.row_images]

    def with_texts_of_rows(self) -> VLBatch:
        """The same rows without a shared text: each has its own."""
        return self if self.row_texts is None else replace(self, row_texts=None, **self._of_rows("Q", self.row_texts))

    def without_sharing(self) -> VLBatch:
        """The same rows, each with its own text and image."""
        batch = self.with_texts_of_rows()
        rows = self.row_images
        return batch if rows is None else replace(batch, row_images=None, **self._of_rows("I", rows))

    def _of_rows(self, axis: str, rows: Tensor) -> dict[str, Any]:
        """The fields of texts (Q) or images (I), one for each row."""
        found = {name: getattr(self, name) for name, (axes, _) in _FIELDS.items() if axes[0] == axis}
        return {name: tensor[rows] for name, tensor in found.items() if tensor is not None}

    @property
    def compact_targets(self) -> bool:
        """Whether `region_targets` are (N, C): then a change of `region_target_mask` must change them too."""
        return self.region_targets is not None and self.region_targets.ndim == 2

    def targets_of(self, chosen: Tensor) -> Tensor:
        """(n, C) targets of the regions in `chosen` (B, R) bool, row after row; all of them are predicted ones."""
        targets, predicted = self.region_targets, self.region_target_mask
        assert targets is not None and predicted is not None
        if not self.compact_targets:
            return targets[chosen]
        return targets if chosen is predicted else targets[chosen[predicted]]

    def row(self, index: int) -> VLBatch:
        """A batch of one row, with the padding it has here."""
        if self.row_texts is not None or self.row_images is not None:
            return self.without_sharing().row(index)
        parts = {name: value for name, value in vars(self).items() if isinstance(value, Tensor | tuple)}
        chosen: dict[str, Any] = {name: value[index : index + 1] for name, value in parts.items()}
        if self.compact_targets:
            assert self.region_target_mask is not None
            of_row = torch.zeros_like(self.region_target_mask)
            of_row[index] = self.region_target_mask[index]
            chosen["region_targets"] = self.targets_of(of_row)
        return replace(self, **chosen)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> VLBatch:
        """The same batch with every tensor on `device`, None for the current one.

        Args:
            dtype: of the features, that of the model's weights; None for their own. Boxes, sizes and targets keep
                their own: bfloat16 rounds pixels beyond 256.
        """
        return self._each(
            lambda name, tensor: tensor.to(device, dtype if name in _FEATURES else tensor.dtype, non_blocking=True)
        )

    def pin_memory(self) -> VLBatch:
        """The same batch in pinned memory; `DataLoader(pin_memory=True)` calls it."""
        return self._each(lambda _name, tensor: tensor.pin_memory())

    def _each(self, made: Callable[[str, Tensor], Tensor]) -> VLBatch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        changed: dict[str, Any] = {name: made(name, value) for name, value in tensors.items()}
        return replace(self, **changed)


def check_word_ids(model: str, text_ids: Tensor, vocab_size: int) -> None:
    """Raises ValueError, with the model's name, for a piece without an embedding; on the CPU alone: it would wait for a
    GPU."""
    if text_ids.device.type != "cpu" or torch.compiler.is_compiling() or not text_ids.numel():
        return
    least, most = (int(found) for found in text_ids.aminmax())
    if least < 0 or most >= vocab_size:
        raise ValueError(
            f"{model}: text_ids are from {least} to {most}, vocab_size is {vocab_size}; cut texts with the tokenizer "
            f"that the model was trained with"
        )


def check_texts(model: str, text_ids: Tensor, words: nn.Embedding, longest: int) -> None:
    """Raises ValueError for texts of no piece or of more than `longest`, or as `check_word_ids`."""
    length = text_ids.shape[1]
    if not 1 <= length <= longest:
        raise ValueError(f"{model}: text of {length} pieces; this model takes 1 ([CLS]) to {longest}")
    check_word_ids(model, text_ids, words.num_embeddings)


def check_features(model: str, features: Tensor, width: int, weight: Tensor) -> None:
    """Raises ValueError for region features of another width or, without autocast, of another dtype than the weight."""
    if features.shape[-1] != width:
        raise ValueError(
            f"{model}: region_features are {features.shape[-1]} wide, this model takes {width}; make it with "
            f"region_feature_size={features.shape[-1]}, or give the features that it was trained on"
        )
    if features.dtype != weight.dtype and not torch.is_autocast_enabled(features.device.type):
        dtype = str(weight.dtype)
        raise ValueError(
            f"{model}: region_features are {features.dtype}, the model's weights {dtype}; write "
            f"batch.to(dtype={dtype}), or keep the weights in float32 and use torch.autocast"
        )


def check_text_alone(model: str, batch: VLBatch) -> None:
    """Raises ValueError for a batch that has regions, where a text is read without any image."""
    if batch.region_mask.shape[1]:
        raise ValueError(
            f"{model}: encode_text reads no image, but the batch has {batch.region_mask.shape[1]} regions a row"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionMaps:
    """Attention weights, one tensor (B, heads, queries, keys) a layer, in the order of the layers.

    Weights of one query add up to 1 over the real positions and are 0 at padding. Text axes are those of `VLBatch`; a
    task token stands after the first piece. Image axes have the whole image first.

    Attributes:
        text_to_image, image_to_text: of one stream (the queries) to the other.
        joint: of one sequence that holds both, in the model's own order.
        joint_text, joint_regions: where in `joint` the text and the regions of the batch begin.
    """

    text: list[Tensor] = field(default_factory=list)
    image: list[Tensor] = field(default_factory=list)
    text_to_image: list[Tensor] = field(default_factory=list)
    image_to_text: list[Tensor] = field(default_factory=list)
    joint: list[Tensor] = field(default_factory=list)
    joint_text: int = 0
    joint_regions: int = 0

    __repr__ = short_repr


@dataclass(frozen=True, eq=False, kw_only=True)
class VLOutput:
    """Last states of a model, in the order of the input batch; those of padding have no meaning (mostly 0).

    A model with two streams has two widths: H of the text, I of the image; elsewhere they are the same.

    Attributes:
        text_states: (B, T, H).
        region_states: (B, R, I), one for each region of the batch.
        whole_image_state: (B, I), state of the whole image if the model gives it an element of its own.
        task_state: (B, H), state of the task token if the model has one.
        pooled: (B, P), one vector for the pair, if the model has a pooler.
        pooled_text, pooled_image: (B, P), one vector for each side, if the model pools each stream by itself.
    """

    text_states: Tensor
    region_states: Tensor
    whole_image_state: Tensor | None = None
    task_state: Tensor | None = None
    pooled: Tensor | None = None
    pooled_text: Tensor | None = None
    pooled_image: Tensor | None = None
    attention: AttentionMaps | None = None
    layer_states: LayerStates | None = None

    __repr__ = short_repr


def image_elements_of(batch: VLBatch, output: VLOutput) -> tuple[Tensor, Tensor]:
    """States (B, E, I) of the image's elements and their mask (B, E): the whole image, if it is one, first."""
    states, mask = output.region_states, batch.rows_region_mask
    if output.whole_image_state is not None:
        states = torch.cat([output.whole_image_state[:, None], states], dim=1)
        mask = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
    return states, mask


class OutputWidths(NamedTuple):
    """Widths of the vectors of a `VLOutput`.

    Attributes:
        text: H, of `text_states`.
        region: I, of `region_states` and `whole_image_state`.
        pooled: P, of the pooled vectors; None for a model without a pooler.
    """

    text: int
    region: int
    pooled: int | None


def _check_tensor(name: str, tensor: Tensor, axes: str, kind: str, sizes: dict[str, int]) -> None:
    wanted = "(" + ", ".join(str(sizes.get(axis, axis)) for axis in axes) + ")"
    if tensor.ndim != len(axes):
        raise ValueError(f"VLBatch: {name} must be {wanted}, got shape {tuple(tensor.shape)}")
    for axis, size in zip(axes, tensor.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise ValueError(f"VLBatch: {name} must be {wanted}, got shape {tuple(tensor.shape)}")
    is_right = tensor.is_floating_point() if kind == "float" else tensor.dtype == getattr(torch, kind)
    if not is_right:
        raise ValueError(f"VLBatch: {name} must be {kind.replace('float', 'floating point')}, got {tensor.dtype}")
