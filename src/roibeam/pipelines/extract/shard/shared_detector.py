"""The one detector of a process: built from its spec, on a CUDA device of its own; and the fingerprint of its output.

Where a machine has several CUDA devices, each process takes a seat, a locked file that the system unlocks when the
process ends, however it ends. Seats are tried device by device and then again from the first device, so processes
spread evenly, also when there are more of them than devices.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import stat
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
import torchvision

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.detector_calls import DetectorCalls
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.global_feature import GlobalFeature, build_global_feature
from roibeam.extraction.network.config import PROPOSAL_SIZES
from roibeam.extraction.network.conventions import PROPOSAL_FIELDS
from roibeam.extraction.weights.detector_choice import Detectron2Config
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec

_seats: dict[tuple[str, ...], tuple[int, IO[bytes]]] = {}  # kept open for as long as the process lives


def own_device(device: str) -> str:
    """ "cuda" -> "cuda:<n>", the same for all calls in a process; anything else is what it was.

    With one visible device (CUDA_VISIBLE_DEVICES) there is nothing to choose.
    """
    if device != "cuda" or torch.cuda.device_count() < 2:
        return device
    # Keyed by hardware names: processes may see different devices under one number.
    names = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    return f"cuda:{claim_device(names)}"


def claim_device(names: Sequence[str], folder: Path | None = None) -> int:
    """Index of the device among `names` on which the fewest processes of this machine sit.

    Args:
        folder: where the seats are; None means one in the system's temporary folder, for each user.
    """
    key = tuple(names)
    if key not in _seats:
        folder = folder or Path(tempfile.gettempdir()) / f"roibeam-devices-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()  # its name can be guessed: another user may have made it, or a link
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise ValueError(
                f"{folder}: is not a folder that only this user can write; remove it, or set TMPDIR to a folder of "
                f"your own (or --device cuda:0)"
            )
        _seats[key] = next(seat for row in itertools.count() for seat in _free_seats(folder, names, row))
    return _seats[key][0]


def _free_seats(folder: Path, names: Sequence[str], row: int) -> list[tuple[int, IO[bytes]]]:
    """The first free seat of a row, or none."""
    for index, name in enumerate(names):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(folder / f"{name}.{row}", flags, 0o600), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return [(index, file)]
    return []


def built_detector(spec: DetectorSpec, device: str) -> RegionDetector:
    """
    Args:
        device: of its computation, in place of the spec's.
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
    """Two-part fingerprint of the records of this process; cached, since it hashes the weights.

    `details["regions"]` is the selection, or "given": given boxes and proposals do not belong into one store,
    and the selection of proposals does not matter for the former.
    """
    description = shared_detector(spec).describe()
    numerics = description.pop("numerics")
    selection = description.pop("selection")
    if given_boxes:
        # Settings that only decide which boxes are proposed have no part in features of other boxes.
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
