"""What a worker needs to know to extract shards: plain picklable data, and the one detector of the process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import torch
import torchvision

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.detector_calls import DetectorCalls
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.fast.modes import mode_named
from roibeam.extraction.global_feature import GlobalFeature, build_global_feature
from roibeam.extraction.network.config import PROPOSAL_SIZES, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, PROPOSAL_FIELDS, Conventions
from roibeam.extraction.selection import SelectionPolicy
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.extract.shard.cuda_device import own_device

_T = TypeVar("_T")
_detectors: dict[DetectorSpec, DetectorCalls] = {}
_global_features: dict[tuple[str, str], GlobalFeature] = {}
_models_lock = threading.Lock()


@dataclass(frozen=True)
class DetectorSpec:
    """How to build the detector of a run.

    Attributes:
        config: network sizes.
        selection: which regions are kept.
        weights: see `roibeam.extraction.weights.loading`.
        device: "cpu", "cuda:1", ..., or "cuda": where there are several, each process takes its own.
        threads: CPU threads of one detector call; None means what torch chooses.
        conventions: how it computes.
        mode: "exact" or a faster one, see `roibeam.extraction.fast.modes`.
    """

    config: DetectorConfig
    selection: SelectionPolicy
    weights: str
    device: str = "cpu"
    threads: int | None = None
    conventions: Conventions = CONVENTIONS["hf"]
    mode: str = "exact"

    def __post_init__(self) -> None:
        mode_named(self.mode, self.device)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Self:
        """The spec that a store's manifest records (`config.detector`), as `dataclasses.asdict` gave it.

        Raises:
            ValueError: for a field that is not known, or a value that it cannot have.
        """
        inner: dict[str, type[Any]] = {
            "config": DetectorConfig,
            "selection": SelectionPolicy,
            "conventions": Conventions,
        }
        parts: dict[str, Any] = {
            name: dataclass_from_json(kind, recorded.get(name), name) for name, kind in inner.items()
        }
        return dataclass_from_json(cls, {**recorded, **parts}, "detector")


def dataclass_from_json(kind: type[_T], recorded: Any, name: str) -> _T:
    """A config dataclass from the JSON that its `asdict` became; lists are tuples again.

    A field that is not recorded has its default: an earlier version did not know it.

    Args:
        name: what errors call the part.
    Raises:
        ValueError: for a field that is not known, or a value that it cannot have.
    """
    if not isinstance(recorded, Mapping):
        raise ValueError(f"the recorded {name} is {type(recorded).__name__}, expected an object")
    unknown = sorted(set(recorded) - {field.name for field in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"the recorded {name} has the field {unknown[0]!r}; was it written by a newer roibeam?")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in recorded.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"the recorded {name}: {error}") from None


@dataclass(frozen=True)
class ExtractJob:
    """One extraction run as its workers see it.

    Attributes:
        store: absolute path of the store, or its URL.
        image_root: folder that must be there: when it is gone, images that are "not found" are not their own fault.
        detector, options: how images become records.
        feature_space: what the driver computed; a worker whose detector differs stops.
        vocabulary_digest: of the class and attribute names, or None for bare ids.
        given_boxes: whether the planned images bring their boxes.
        scratch: folder of the worker in which shards of a store at a URL are written before they are uploaded; None
            for its temporary folder.
    """

    store: str
    image_root: str
    detector: DetectorSpec
    options: ExtractOptions
    feature_space: str
    vocabulary_digest: str | None
    given_boxes: bool
    scratch: str | None = None


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
            detector = build_detector(
                spec.config,
                weights=spec.weights,
                selection=spec.selection,
                conventions=spec.conventions,
                device=own_device(spec.device),
                mode=spec.mode,
            )
            _detectors[spec] = DetectorCalls(detector)
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

    `details["regions"]` is the selection, or "given": features of given boxes and of proposals do not belong together,
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
