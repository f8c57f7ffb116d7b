"""One caption beside the regions of one image, before anything is masked, and masks and targets to a row of a batch.

What ViLBERT, its single-stream baseline and InterBERT have in common: the whole caption in segment 0, cut at its end;
the image's regions in the order of the record; a class distribution or the feature as what a region is predicted to be.
ImageBERT and VisualBERT keep the same regions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.batches.class_targets import ClassTargets, as_tensor
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.shown_regions import strongest_regions
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, EncodedCaption


def cut_caption(encoded: EncodedCaption, max_pieces: int) -> EncodedCaption:
    """The caption without what is beyond `max_pieces`, first and last special token counted; these two stay."""
    if len(encoded.ids) <= max_pieces:
        return encoded
    kept = np.append(np.arange(max_pieces - 1), len(encoded.ids) - 1)
    return EncodedCaption(encoded.ids[kept], encoded.word_ids[kept])


@dataclass(frozen=True, eq=False)
class CaptionAndRegions:
    """What one row shows before anything is hidden. T pieces, R regions, D feature width.

    Attributes:
        record: of the image.
        caption: cut.
        regions: (R,) int64, those of the record's regions that are kept.
        features: (R, D), in the type of the store; boxes: (R, 4) float32, pixels.
        matched: whether caption and image belong together; None where the model is not asked.
    """

    record: RegionRecord
    caption: EncodedCaption
    regions: np.ndarray
    features: Tensor
    boxes: np.ndarray
    matched: bool | None

    @classmethod
    def of(
        cls,
        record: RegionRecord,
        caption: str,
        tokenizer: CaptionTokenizer,
        *,
        max_pieces: int,
        max_regions: int,
        matched: bool | None,
    ) -> CaptionAndRegions:
        regions = strongest_regions(record, max_regions)
        encoded = cut_caption(tokenizer.encode(caption), max_pieces)
        return cls(record, encoded, regions, as_tensor(record.features[regions]), record.boxes[regions], matched)

    def class_targets(self, predicted: np.ndarray, num_classes: int) -> ClassTargets:
        """Of the regions in `predicted` (R,) bool; errors as `class_targets`."""
        return ClassTargets.of(self.record, self.regions, predicted, num_classes)

    def sample(
        self,
        text_ids: np.ndarray,
        text_labels: np.ndarray,
        masked: np.ndarray,
        predicted: np.ndarray,
        targets: ClassTargets | Tensor | None,
        *,
        contrasted: bool = False,
        whole_image: Tensor | None = None,
        twin: PretrainSample | None = None,
    ) -> PretrainSample:
        """The row with these masks; all of them as in `PretrainSample`."""
        return PretrainSample(
            sample_id=self.record.image_id,
            text_ids=text_ids,
            text_labels=text_labels,
            text_segments=np.zeros(len(text_ids), np.int64),
            features=self.features,
            boxes=self.boxes,
            masked=masked,
            predicted=predicted,
            region_targets=targets,
            contrasted=contrasted,
            height=self.record.height,
            width=self.record.width,
            whole_image=whole_image,
            match=None if self.matched is None else int(self.matched),
            twin=twin,
        )
