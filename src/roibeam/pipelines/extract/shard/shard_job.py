"""One shard from its planned images to its manifest, by the one detector of the process. Independent of Beam.

It is safe to repeat, to kill and to run twice. Work happens in OUT/.tmp-<attempt>/; then the data file moves to its
final name and, last, the shard manifest names it. Files of a killed attempt are named by no manifest, so they are never
read, and the next run clears them away. Where OUT is a URL, work happens in a temporary folder of the worker's disk,
and the data file is uploaded. Whole records of a shard that is written anew for its failed images are kept.

Where a machine has several CUDA devices, each process takes a seat, a locked file that the system unlocks when the
process ends, however it ends. Seats are tried device by device and then again from the first device, so processes
spread evenly, also when there are more of them than devices.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import logging
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
import torchvision

from roibeam.extraction.detector import RegionDetector
from roibeam.extraction.engine.detector_calls import DetectorCalls
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import StageTimes, extract_regions
from roibeam.extraction.global_feature import GlobalFeature, build_global_feature
from roibeam.extraction.network.config import PROPOSAL_SIZES
from roibeam.extraction.network.conventions import PROPOSAL_FIELDS
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.weights.detector_choice import Detectron2Config
from roibeam.extraction.weights.loading import build_detector
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.features.folders.folder_protocol import OutputFolder, UnreachableError
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of, merged_numerics
from roibeam.features.record.region_record import RegionRecord, content_digest
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, ShardSummary
from roibeam.features.shard.reader import ShardReader
from roibeam.features.shard.writer import ShardWriter, publish_shard
from roibeam.features.verify import record_problem
from roibeam.pipelines.common.locations import read_image
from roibeam.pipelines.data.shard_plan import PlannedShard, read_members
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec, ExtractJob
from roibeam.pipelines.extract.shard.process_setup import running_shard, shards_must_stop
from roibeam.pipelines.extract.shard.run_progress import Heartbeat
from roibeam.pipelines.extract.shard.store_folder import finished_manifest
from roibeam.version import __version__

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
    """Builds a detector on `device`, whatever device the spec names."""
    if spec.models or spec.config is None:
        from roibeam.extraction.adapters.any_detector import build_any_detector

        is_named = spec.config is None or isinstance(spec.config, NamedModel)
        own: Any = spec.config if is_named else built_detector(replace(spec, backbone=None), device)
        return build_any_detector(own, spec.backbone, spec.selection, device=device, mode=spec.mode)
    assert not isinstance(spec.config, NamedModel)
    if isinstance(spec.config, Detectron2Config):
        from roibeam.extraction.adapters.detectron2_adapter import build_detectron2_detector

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
    with _models_lock:
        return _global_feature(options.global_network, spec.device)


@functools.lru_cache(maxsize=1)
def _global_feature(network: str, device: str) -> GlobalFeature:
    return build_global_feature(network, device=own_device(device))


@functools.lru_cache(maxsize=4)
def shared_fingerprint(
    spec: DetectorSpec, options: ExtractOptions, vocabulary_digest: str | None, given_boxes: bool
) -> Fingerprint:
    """Two-part fingerprint of the records of this process; cached, since it hashes the weights.

    `details["regions"]` is the selection, "grid", or "given": given boxes and proposals do not belong into one store,
    and the selection of proposals does not matter for the former.
    """
    description = shared_detector(spec).describe()
    numerics = description.pop("numerics")
    selection = description.pop("selection")
    grid = getattr(spec.config, "grid", "")
    if (given_boxes or grid) and "config" in description:
        # Settings that only decide which boxes are proposed have no part in features of other boxes.
        description["config"] = _without(description["config"], PROPOSAL_SIZES)
        description["conventions"] = _without(description["conventions"], PROPOSAL_FIELDS)
        description.pop("cell_anchors", None)
    network = shared_global_feature(spec, options)
    if spec.backbone is None:
        made_by = {"detector": description, "vocabulary": vocabulary_digest}
    else:  # what makes the vector, and apart from it what found and named the boxes
        boxes = {**description["boxes"], "vocabulary": vocabulary_digest}
        made_by = {"backbone": description["backbone"], "boxes": boxes}
    details = {
        **made_by,
        "regions": "grid" if grid else "given" if given_boxes else selection,
        "image_feature": options.image_feature if network is None else network.describe(),
        "feature_dtype": options.feature_dtype,
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


log = logging.getLogger(__name__)


@contextmanager
def kept_records(
    folder: OutputFolder, manifest: ShardManifest | None
) -> Iterator[Mapping[str, Callable[[], RegionRecord]]]:
    """Readers of the sound records of the attempt that a manifest names, by image id; none for None, and where its file
    is damaged as a whole. A file at a URL is copied to the scratch folder for a while."""
    if manifest is None or manifest.data_file is None:
        yield {}
        return
    with folder.local_file(manifest.data_file, manifest.data_bytes) as path:
        try:
            kept = _sound_records(ShardReader(path, manifest))
        except UnreachableError:
            raise
        except (OSError, ValueError) as error:
            log.warning("%s; extracting its shard again", error)
            kept = {}
        yield kept


def _sound_records(reader: ShardReader) -> dict[str, Callable[[], RegionRecord]]:
    if content_digest(reader.digests()) != reader.manifest.content_digest:
        raise ValueError(f"{reader.path}: its index gives another content digest than its manifest")
    found: dict[str, Callable[[], RegionRecord]] = {}
    for row, image_id in enumerate(reader.ids()):
        if (problem := record_problem(reader, row, image_id)) is not None:
            log.warning("record %r: %s; extracting it again", image_id, problem)
        else:
            found[image_id] = functools.partial(reader.record_at, row, image_id=image_id, copy=False)
    return found


@dataclass(frozen=True)
class ShardResult:
    """Result of one shard. `seconds` is None when another attempt, of this run or an earlier one, finished it."""

    number: int
    num_records: int
    num_failures: int
    seconds: float | None


@dataclass
class ShardMeter:
    """Measurements of a shard's extraction, besides its result; filled while it runs.

    Attributes:
        failures: images that gave no record.
        num_regions, num_bytes: of the written records, and of their file.
        num_copied: records that were kept of an earlier attempt; they are in no time.
    """

    times: StageTimes = field(default_factory=StageTimes)
    failures: list[Failure] = field(default_factory=list)
    num_regions: int = 0
    num_bytes: int = 0
    num_copied: int = 0


def extract_shard(job: ExtractJob, shard: PlannedShard, meter: ShardMeter | None = None) -> ShardResult:
    """Extracts one shard, or returns at once when it is finished. If the failed images of a finished one are to be
    tried again, only those are extracted; its records are copied.

    Args:
        meter: gets what there is to measure; stays empty when the shard was finished.
    Raises:
        ValueError: if this worker's detector is not the one that the run was planned with.
        OSError: if the store cannot be written, or the image folder has gone.
        ExtractionStopped: when the run was stopped; the shard is dropped then.
    """
    with running_shard():
        return _extract_shard(job, shard, meter or ShardMeter())


def _extract_shard(job: ExtractJob, shard: PlannedShard, meter: ShardMeter) -> ShardResult:
    folder = output_folder(job.store, job.scratch)  # a worker's own: it may be on another machine
    done = finished_manifest(folder, shard, job.feature_space)
    if done is not None:
        return ShardResult(shard.number, done.num_records, len(done.dead_letters), None)
    fingerprint = shared_fingerprint(job.detector, job.options, job.vocabulary_digest, job.given_boxes)
    if fingerprint.feature_space != job.feature_space:
        raise ValueError("this worker's detector differs from the planned one: do all workers see the same weights?")
    attempt = secrets.token_hex(4)
    with (
        folder.scratch(attempt, job.scratch) as scratch,
        Heartbeat(folder, scratch, attempt, shard.number) as heartbeat,
    ):
        start = time.monotonic()
        failures = meter.failures
        before = finished_manifest(folder, shard, job.feature_space, retried=True)
        members = read_members(folder, shard)
        with kept_records(folder, before) as kept:
            summary = _write_data(job, members, scratch, heartbeat, meter, kept)
        if before is not None and meter.num_copied:
            numerics = merged_numerics([before.fingerprint.numerics, fingerprint.numerics])
            fingerprint = replace(fingerprint, numerics=numerics)
        seconds = time.monotonic() - start
        manifest = ShardManifest.from_summary(
            summary,
            shard=shard.number,
            attempt=attempt,
            fingerprint=fingerprint,
            members_digest=shard.members_digest,
            dead_letters=tuple(DeadLetter(**asdict(failure)) for failure in failures),
            stats={
                "seconds": round(seconds, 3),
                "host": socket.gethostname(),
                "process": os.getpid(),
                "roibeam": __version__,
                **meter.times.summaries(),
                **({"copied": meter.num_copied} if meter.num_copied else {}),
            },
        )
        heartbeat.uploading(manifest.num_records, failures)
        counting = _publish(folder, shard, scratch, manifest)
    if counting is not manifest:
        return ShardResult(shard.number, counting.num_records, len(counting.dead_letters), None)
    meter.num_regions, meter.num_bytes = manifest.num_regions, manifest.data_bytes
    return ShardResult(shard.number, manifest.num_records, len(failures), seconds)


def _publish(folder: OutputFolder, shard: PlannedShard, scratch: Path, manifest: ShardManifest) -> ShardManifest:
    """Puts data file and manifest into their places; gives the manifest that counts.

    That is another attempt's where one finished the shard meanwhile, unknown to this one: a runner may start two, or go
    on with one whose run is over. Its manifest must stay as it is, since a run that publishes has read it, and then
    removes what no manifest named.
    """
    if manifest.data_file is not None:
        folder.put_file(scratch / "data.lmdb", manifest.data_file)
    if publish_shard(folder, manifest, first=True):
        return manifest
    other = finished_manifest(folder, shard, manifest.fingerprint.feature_space)
    if other is None:  # damaged, or of another plan
        publish_shard(folder, manifest)
        return manifest
    if manifest.data_file is not None:
        folder.delete(manifest.data_file)
    return other


def _write_data(
    job: ExtractJob, members: Sequence[ImageRef], scratch: Path, heartbeat: Heartbeat, meter: ShardMeter,
    kept: Mapping[str, Callable[[], RegionRecord]],
) -> ShardSummary:  # fmt: skip
    """Writes scratch/data.lmdb, or no file when no image gave a record; times and failed images go to `meter`."""
    failures = meter.failures
    num_records = 0
    with ShardWriter(scratch / "data.lmdb", planned_bytes=planned_bytes(job, members)) as writer:
        extracted = extract_members(job, [each for each in members if each.image_id not in kept], meter.times)
        for member in members:  # in the plan's order, so that a shard is written alike, whatever is copied
            is_kept = member.image_id in kept
            outcome = kept[member.image_id]() if is_kept else next(extracted)
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                start = time.monotonic()
                writer.put(outcome)
                if is_kept:
                    meter.num_copied += 1
                else:
                    meter.times.write_ms.add(time.monotonic() - start)
                num_records += 1
            heartbeat.beat(num_records, failures)
        return writer.finish() if num_records else ShardSummary()


def extract_members(
    job: ExtractJob, members: Sequence[ImageRef], times: StageTimes | None = None
) -> Iterator[RegionRecord | Failure]:
    """One outcome for each image, in the order given, by the detector of this process. Raises SourceGoneError when the
    whole image folder is gone or empty."""
    return extract_regions(
        members,
        shared_detector(job.detector),
        options=job.options,
        read_bytes=functools.partial(read_image, job.image_root),
        global_feature=shared_global_feature(job.detector, job.options),
        calls=shared_calls(job.detector),
        times=times,
        should_stop=shards_must_stop,
    )


def planned_bytes(job: ExtractJob, members: Sequence[ImageRef]) -> int:
    """Upper estimate of the bytes that the images take in a shard (the writer grows when it is short)."""
    detector = shared_detector(job.detector)
    value = 4 if job.options.feature_dtype == "float32" else 2
    columns = {"full": detector.num_classes + 1, "none": 0}.get(job.options.distribution, 2 * (job.options.top_k or 0))
    region = detector.feature_dim * value + columns * 2 + 64
    proposed = job.detector.selection.max_regions
    num_regions = sum(proposed if member.boxes is None else len(member.boxes) for member in members)
    return num_regions * region + len(members) * 8192 + 2**20
