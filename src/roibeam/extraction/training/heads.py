"""What a detector has beside its region encoder: the proposal network and the heads. With the encoder it is whole."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.anchors import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.roi_heads import BoxPredictor, RoIHeads
from roibeam.extraction.network.rpn import ProposalGenerator
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.training.batch_losses import build_trainable_detector, initialise
from roibeam.extraction.weights.loading import load_weights


class DetectorHeads(nn.Module):
    """Parameters have the names they have in a `Detector`, so that they and those of the encoder are one.

    Args:
        config, conventions: of the detector and of the encoder.
    """

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.proposal_generator = ProposalGenerator(config, conventions)
        self.roi_heads = nn.ModuleDict({"box_predictor": BoxPredictor(config, conventions)})

    def detector(self, encoder: RegionEncoder) -> Detector:
        """The whole detector around an encoder, in evaluation mode. Nothing is copied: it is what the encoder is."""
        with torch.device("meta"):  # nothing is drawn or allocated for a last stage that is not kept
            heads = RoIHeads(self.config, self.conventions)
        res5, predictor = encoder.roi_heads["res5"], self.roi_heads["box_predictor"]
        assert isinstance(res5, nn.Sequential) and isinstance(predictor, BoxPredictor)
        heads.res5, heads.box_predictor = res5, predictor
        return Detector(
            self.config,
            self.conventions,
            backbone=encoder.backbone,
            proposal_generator=self.proposal_generator,
            roi_heads=heads,
        )

    def check_anchors(self) -> None:
        """Raises ValueError when a weight file brought anchors that the conventions do not compute: a checkpoint holds
        the conventions alone."""
        if not torch.equal(self.proposal_generator.cell_anchors.cpu(), cell_anchors(self.config, self.conventions)):
            raise ValueError(
                "the detector's file has anchors of its own, other than its conventions compute; choose the "
                "conventions of that file (--conventions caffe, milvlg, hf or d2)"
            )


def load_heads(
    spec: str, config: DetectorConfig, conventions: Conventions, *, cache_dir: Path | None = None
) -> DetectorHeads:
    """The heads of a whole detector's file.

    Args:
        spec, cache_dir: as `load_weights` takes them.
    Raises:
        ValueError: as `load_weights`, and for anchors that the conventions do not compute.
        OSError: when the file cannot be fetched.
    """
    detector = Detector(config, conventions)
    load_weights(spec, detector, cache_dir=cache_dir)
    heads = heads_of(detector)
    heads.check_anchors()
    return heads


def new_heads(config: DetectorConfig, conventions: Conventions, *, seed: int) -> DetectorHeads:
    """Heads to train from scratch, see `initialise`."""
    detector = build_trainable_detector(config, conventions)
    initialise(detector, torch.Generator().manual_seed(seed))
    return heads_of(detector)


def heads_of(detector: Detector) -> DetectorHeads:
    """Those of a detector; they share its parameters."""
    with torch.device("meta"):
        heads = DetectorHeads(detector.config, detector.conventions)
    generator, own = detector.proposal_generator, detector.roi_heads
    assert isinstance(generator, ProposalGenerator) and isinstance(own, RoIHeads)
    heads.proposal_generator, heads.roi_heads["box_predictor"] = generator, own.box_predictor
    return heads
