"""Photos and texts -> the inputs of transformers' VisualBERT and LXMERT models, which take regions but find none.

    from roibeam import RegionProcessor, build_detector
    from transformers import AutoTokenizer, LxmertModel  # or VisualBertModel, LxmertForQuestionAnswering, ...

    tokenizer = AutoTokenizer.from_pretrained("unc-nlp/lxmert-base-uncased")
    model = LxmertModel.from_pretrained("unc-nlp/lxmert-base-uncased")
    detector = build_detector(preset="lxmert", weights="hf:unc-nlp/frcnn-vg-finetuned")
    processor = RegionProcessor(detector, tokenizer, model.config)
    outputs = model(**processor("photo.jpg", "Where is the cat?"))

A model runs on any features of its width, and answers badly on those of another detector than it was trained with.
LXMERT was trained on 36 regions of bottom-up attention for each photo (github.com/airsplay/lxmert), VisualBERT's
checkpoints on features of several detectors: 2048 wide for VQA, 1024 for NLVR2, 512 for VCR (uclanlp/visualbert there).
For Flickr30k six numbers of each box stand behind the 2048; a VisualBERT that is six wider than its regions gets them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.detector_calls import exif_orientation
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import extract_regions, to_record
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.record.region_record import BOX_NUMBERS, RegionRecord

if TYPE_CHECKING:
    from transformers import BatchEncoding, LxmertConfig, PreTrainedTokenizerBase, VisualBertConfig

# A path, a decoded photo as (height, width, 3) uint8 in B, G, R order (what cv2.imread gives), a Pillow image, or a
# record of a store.
Photo = str | os.PathLike[str] | np.ndarray | Image.Image | RegionRecord
_ONE_PHOTO = (str, os.PathLike, np.ndarray, Image.Image, RegionRecord)

_OPTIONS = ExtractOptions(feature_dtype="float32", distribution="none")
# Pillow modes of 8 bits a channel; `convert("RGB")` cuts off what others hold above 255.
_PILLOW_MODES = ("RGB", "L", "P", "RGBA", "LA", "PA", "RGBX", "1", "CMYK", "YCbCr")


class RegionProcessor:
    """Photos and texts -> all inputs of `model(**inputs)`.

    Args:
        detector: finds the regions; None if only stored records will come.
        tokenizer: of transformers, the model's own.
        config: the model's `config`, of VisualBERT or LXMERT, with any head.
    Raises:
        ValueError: for a config of another model, or a detector whose features are not as wide as the model takes them.
    """

    def __init__(
        self,
        detector: RegionDetector | None,
        tokenizer: PreTrainedTokenizerBase,
        config: VisualBertConfig | LxmertConfig,
    ) -> None:
        if config.model_type not in _VISUAL_INPUTS:
            raise ValueError(
                f"a config of model type {config.model_type!r}; regions become inputs of {', '.join(_VISUAL_INPUTS)}"
            )
        self.detector = detector
        self.tokenizer = tokenizer
        self.config = config
        if detector is not None:
            self._check_width("the detector gives", detector.feature_dim)

    def __repr__(self) -> str:
        return f"RegionProcessor({self.detector!r}, {type(self.tokenizer).__name__}, for {self.config.model_type})"

    def __call__(self, photos: Photo | Sequence[Photo], texts: str | Sequence[str]) -> BatchEncoding:
        """The inputs of one batch.

        A single photo goes with each of several texts, and is read once; a single text with each of several photos;
        lists of both are paired.

        Args:
            photos: a path is decoded as in extraction. A Pillow image is turned by its EXIF tag, like a path under
                the default conventions. **An array is in B, G, R order**: R, G, B gives wrong features and no error.
        Returns:
            On the CPU (`.to(device)` moves all), B samples of up to L tokens and R regions, padded with zeros:
            input_ids, attention_mask, token_type_ids: (B, L) int64, as the tokenizer makes them;
            visual_attention_mask: (B, R) int64, 1 for a region, 0 for padding;
            VisualBERT: visual_embeds (B, R, D) float32; visual_token_type_ids (B, R) int64, all 1, transformers'
            default (the original code gives a single photo type 0: check per checkpoint);
            LXMERT: visual_feats (B, R, D) float32; visual_pos (B, R, 4) float32, x1/width y1/height x2/width y2/height.
        Raises:
            ValueError: for a photo that cannot be decoded; features of another width; a photo without any region, for
                LXMERT; a text too long for the model, or ids beyond its vocabulary; lists of different or no length.
            One photo that cannot be used fails the batch: for many, use `extract_regions`, which makes failures data.
            OSError: for a file that cannot be read.
        """
        photo_list: list[Photo] = [photos] if isinstance(photos, _ONE_PHOTO) else list(photos)
        text_list = [texts] if isinstance(texts, str) else list(texts)
        num_samples = max(len(photo_list), len(text_list))
        if not {len(photo_list), len(text_list)} <= {1, num_samples} or not num_samples:
            raise ValueError(
                f"{len(photo_list)} photos and {len(text_list)} texts; give as many of each, or one of one"
            )
        if len(text_list) == 1:
            text_list *= num_samples
        inputs = self._encode(text_list)
        records = [self._regions(photo, f"photo {number}") for number, photo in enumerate(photo_list)]
        for record in records:
            self._check_width(f"record {record.image_id!r} holds", record.features.shape[1])
        records = [
            record.with_box_numbers() if self._wants_box_numbers(record.features.shape[1]) else record
            for record in records
        ]
        if len(records) == 1:
            records *= num_samples
        inputs.update(_VISUAL_INPUTS[self.config.model_type](records))
        return inputs

    def _encode(self, texts: list[str]) -> BatchEncoding:
        inputs = self.tokenizer(
            texts,
            padding=True,
            padding_side="right",  # both models number positions from the left, padding included
            return_tensors="pt",
            return_attention_mask=True,
            return_token_type_ids=True,
        )
        num_tokens, limit = inputs["input_ids"].shape[1], self.config.max_position_embeddings
        if num_tokens > limit:
            raise ValueError(f"a text of {num_tokens} tokens; this model takes at most {limit}: shorten it")
        largest, vocabulary = int(inputs["input_ids"].max()), self.config.vocab_size
        if largest >= vocabulary:
            raise ValueError(f"the tokenizer gives id {largest}, the model has {vocabulary} words: another model's?")
        return inputs

    def _regions(self, photo: Photo, name: str) -> RegionRecord:
        if isinstance(photo, RegionRecord):
            return photo
        if self.detector is None:
            raise ValueError("this processor has no detector, so it takes records of a store and no photos")
        if isinstance(photo, (np.ndarray, Image.Image)):
            upright = exif_orientation(self.detector) == "applied"
            image = photo if isinstance(photo, np.ndarray) else _bgr_pixels(photo, upright=upright)
            (regions,) = self.detector([image])
            return to_record(name, image.shape[0], image.shape[1], regions, _OPTIONS)
        location = os.fspath(photo)
        (outcome,) = extract_regions([ImageRef(name, location)], self.detector, options=_OPTIONS)
        if isinstance(outcome, Failure):
            error = OSError if outcome.stage == "read" else ValueError
            raise error(f"photo {location}: {outcome.reason}: {outcome.detail}")
        return outcome

    def _check_width(self, who: str, width: int) -> None:
        name = "visual_embedding_dim" if self.config.model_type == "visual_bert" else "visual_feat_dim"
        if width != getattr(self.config, name) and not self._wants_box_numbers(width):
            raise ValueError(
                f"{who} features of width {width}, the model's {name} is {getattr(self.config, name)}; "
                f"take the detector that the model was trained with"
            )

    def _wants_box_numbers(self, width: int) -> bool:
        """Whether six numbers of each box belong behind features of that width."""
        wanted = getattr(self.config, "visual_embedding_dim", None)
        return self.config.model_type == "visual_bert" and wanted == width + BOX_NUMBERS


def visual_bert_regions(records: Sequence[RegionRecord]) -> dict[str, Tensor]:
    """The visual inputs of VisualBERT for a batch; see `RegionProcessor.__call__`. R may be 0."""
    mask = _region_mask(records)
    return {
        "visual_embeds": _padded([record.features for record in records]),
        "visual_attention_mask": mask,
        "visual_token_type_ids": torch.ones_like(mask),
    }


def lxmert_regions(records: Sequence[RegionRecord]) -> dict[str, Tensor]:
    """The visual inputs of LXMERT for a batch; see `RegionProcessor.__call__`.

    Boxes are divided by the photo's sides as in transformers' research project (modeling_frcnn.py::norm_box), which the
    published checkpoints were run with. Raises ValueError for a record without regions. Alone it fails inside the
    model; in a batch, the text would attend to the padding, and the answer would depend on the other rows of the batch.
    """
    for record in records:
        if not record.num_regions:
            raise ValueError(
                f"record {record.image_id!r} has no regions, and LXMERT needs at least one; "
                f"take a selection that keeps some, such as butd-10-100"
            )
    sides = [np.array([record.width, record.height] * 2, np.float32) for record in records]
    return {
        "visual_feats": _padded([record.features for record in records]),
        "visual_pos": _padded([record.boxes / side for record, side in zip(records, sides, strict=True)]),
        "visual_attention_mask": _region_mask(records),
    }


_VISUAL_INPUTS: Mapping[str, Callable[[Sequence[RegionRecord]], dict[str, Tensor]]] = MappingProxyType(
    {"visual_bert": visual_bert_regions, "lxmert": lxmert_regions}
)


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    """(K_b, D) of any float type each -> (B, R, D) float32, zeros below the K_b rows."""
    batch = torch.zeros(len(rows), max(map(len, rows)), rows[0].shape[1])
    for sample, values in zip(batch, rows, strict=True):
        sample[: len(values)] = torch.from_numpy(values.astype(np.float32))
    return batch


def _region_mask(records: Sequence[RegionRecord]) -> Tensor:
    counts = torch.tensor([record.num_regions for record in records])
    return (torch.arange(int(counts.max())) < counts[:, None]).long()


def _bgr_pixels(image: Image.Image, *, upright: bool) -> np.ndarray:
    """A Pillow image -> (height, width, 3) uint8 in B, G, R order, without alpha; with `upright` turned by its EXIF
    tag."""
    if image.mode not in _PILLOW_MODES:
        raise ValueError(f"a Pillow image of mode {image.mode} has more than 8 bits a channel; give its path instead")
    turned: Any = ImageOps.exif_transpose(image) if upright else image
    rgb = turned.convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb)[:, :, ::-1])
