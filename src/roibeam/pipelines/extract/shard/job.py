"""The one detector of a process, and the fingerprint of what it writes."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
import torchvision

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.detector_calls import DetectorCalls
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.global_feature import GlobalFeature, build_global_feature
from roibeam.extraction.network.config import PROPOSAL_SIZES
from roibeam.extraction.network.conventions import PROPOSAL_FIELDS
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.extract.shard.built_detector import built_detector
from roibeam.pipelines.extract.shard.cuda_device import own_device
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec

_detectors: dict[DetectorSpec, DetectorCalls] = {}
_global_features: dict[tuple[str, str], GlobalFeature] = {}
_models_lock = threading.Lock()


def shared_detector(spec: DetectorSpec) -> RegionDetector:
    """The detector of this process, built on first use and shared by its threads."""
    return shared_calls(spec).detector


def shared_calls(spec: DetectorSpec) -> DetectorCalls:
    """The calls of the detector of this process: one at a time, whichever thread makes them."""
    with _models_lock:
        if spec not in _detectors:
            if spec.threads is not None:
                torch.set_num_threads(spec.threads)
            _detectors.clear()  # one model per process: a new spec replaces the old one
            _detectors[spec] = DetectorCalls(built_detector(spec, own_device(spec.device)))
        return _detectors[spec]


def place_detector(spec: DetectorSpec, detector: RegionDetector) -> None:
    """Puts a detector of the caller's own where this process would build that of `spec`, for the workers in it."""
    with _models_lock:
        _detectors.clear()
        _detectors[spec] = DetectorCalls(detector)


def shared_global_feature(spec: DetectorSpec, options: ExtractOptions) -> GlobalFeature | None:
    """The network that `options.image_feature` names, on the detector's device; None where it names none."""
    if options.global_network is None:
        return None
    key = (options.global_network, spec.device)
    with _models_lock:
        if key not in _global_features:
            _global_features.clear()
            _global_features[key] = build_global_feature(options.global_network, device=own_device(spec.device))
        return _global_features[key]


@functools.lru_cache(maxsize=4)
def shared_fingerprint(
    spec: DetectorSpec, options: ExtractOptions, vocabulary_digest: str | None, given_boxes: bool
) -> Fingerprint:
    """The two-part fingerprint of what this process writes; kept, since it hashes the weights.

    `details["regions"]` is the selection, or "given": given boxes and proposals do not belong into one store,
    and how proposals would have been selected says nothing of the former.
    """
    description = shared_detector(spec).describe()
    numerics = description.pop("numerics")
    selection = description.pop("selection")
    if given_boxes:
        # What only decides which boxes are proposed has no part in features of other boxes.
        description["config"] = _without(description["config"], PROPOSAL_SIZES)
        description["conventions"] = _without(description["conventions"], PROPOSAL_FIELDS)
        description.pop("cell_anchors", None)
    network = shared_global_feature(spec, options)
    details = {
        "detector": description,
        "regions": "given" if given_boxes else selection,
        "image_feature": options.image_feature if network is None else network.describe(),
        "feature_dtype": options.feature_dtype,
        "vocabulary": vocabulary_digest,
    }
    return Fingerprint(feature_space_of(details), {**numerics, **_machine(spec)}, details)


def _without(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _machine(spec: DetectorSpec) -> dict[str, Any]:
    device = torch.device(own_device(spec.device))
    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
