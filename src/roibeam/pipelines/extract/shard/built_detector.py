"""From names to a detector in memory: one of ours, or one of detectron2's."""

from __future__ import annotations

from roibeam.extraction.choice.detectron2_choice import Detectron2Config
from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec


def built_detector(spec: DetectorSpec, device: str) -> RegionDetector:
    """
    Args:
        device: where it computes, whatever the spec says.
    Raises:
        ValueError: as `build_detector`, or as `build_detectron2_detector`: without detectron2, a line how to get it.
    """
    if isinstance(spec.config, Detectron2Config):
        from roibeam.extraction.detectron2.adapter import build_detectron2_detector

        return build_detectron2_detector(
            spec.config.file,
            weights=spec.weights,
            selection=spec.selection,
            device=device,
            layer=spec.config.layer or None,
        )
    return build_detector(
        spec.config,
        weights=spec.weights,
        selection=spec.selection,
        conventions=spec.conventions,
        device=device,
        mode=spec.mode,
        given_boxes=spec.given_boxes,
    )
