"""Request of an extraction, which is the command `roibeam extract`: plain data, checked when it is opened
(`work.open_work`).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

from roibeam.messages import check_lists
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    FAILURES,
    INPUT,
    KEPT,
    NETWORK,
    SPEED,
    CaptionColumn,
    Device,
    IdRule,
    Json,
    MaxPixels,
    Threads,
    argument,
    option,
    renamed,
)
from roibeam.pipelines.data.compatibility import MIN_MATCH, HeldOutOptions

PRESET_NAMES = (
    "butd-10-100, butd-36, milvlg, milvlg-36, milvlg-r152, milvlg-d2-r50, milvlg-d2-r101, milvlg-d2-x152, vinvl, "
    "vinvl-demo, lxmert, d2, vl-bert, vilbert, visualbert, imagebert or interbert"
)
# Values of `--precision`, and the modes of `roibeam.extraction.fast.modes` that compute so.
_MODES = {"float32": "exact", "tf32": "tf32", "bf16": "bf16"}


@renamed(image_root="photos", leave_out_held_out="drop_held_out", images_of="numbers_of")
@dataclass(frozen=True)
class RequestedImages(HeldOutOptions):
    """Images to extract, which `roibeam.pipelines.data.source_kinds.open_sources` opens."""

    sources: Annotated[tuple[str, ...], argument(
        "SOURCE", "Photos, a folder, a pattern in quotes, a .tar or .zip, a list or annotation file, or a URL; see "
        "docs/extract.md.",
    )]  # fmt: skip
    photos: Annotated[str | None, option(
        "Folder of the photos, or a URL. For a list or annotation file.", "DIR", INPUT, default="found near it",
    )] = None  # fmt: skip
    id_rule: IdRule = "no-extension"
    id_prefix: Annotated[str, option(
        "Put before each image id, such as cc3m/, so that two sources can be merged.", "TEXT", INPUT, default="none",
    )] = ""  # fmt: skip
    part: Annotated[str, option(
        "Take only this part of the images, such as 2/8, as a job of an array does; of many archives, its own ones.",
        "I/N", INPUT, advanced=True,
    )] = "1/1"  # fmt: skip
    skip_bad_archives: Annotated[bool, option(
        "Leave out archives that are damaged or cut short, instead of stopping.", "", INPUT, advanced=True,
    )] = False  # fmt: skip
    boxes: Annotated[str | None, option(
        "Boxes to use in place of found regions; see docs/extract.md.", "FILE", INPUT,
    )] = None  # fmt: skip
    captions: Annotated[str | None, option(
        "Captions: .json (COCO, Karpathy, SBU, list), .tsv or table.", "FILE", INPUT,
    )] = None  # fmt: skip
    min_match: Annotated[float, option(
        "Stop if less than this share of the captioned images is found.", "SHARE", INPUT, min=0, max=1,
    )] = MIN_MATCH  # fmt: skip
    _: KW_ONLY
    caption_column: CaptionColumn = ""

    def __post_init__(self) -> None:
        check_lists(self, "sources", "held_out")


@dataclass(frozen=True)
class DetectorOptions:
    """A detector, see `roibeam.extraction.weights.detector_choice.choose_detector`.

    What is None is, in an extraction, as the store recorded it, where it holds features already.
    """

    detector: Annotated[str | None, option(
        "toy, a run of `roibeam detector train`, a network by name (grid-x101, ...), a detectron2 config, "
        "torchvision:NAME, hf:ID, python:FILE.py:FUNCTION.", "NAME", DETECTOR, default="by the preset",
    )] = None  # fmt: skip
    preset: Annotated[str | None, option(
        f"Published features to reproduce: {PRESET_NAMES}.", "NAME", DETECTOR,
        default="that of the store, else butd-10-100",
    )] = None  # fmt: skip
    weights: Annotated[str | None, option(
        "Weights of the detector: a file, a URL, hf:REPO, random:SEED, default (torchvision's).",
        "FILE", DETECTOR, default="its own",
    )] = None  # fmt: skip
    backbone: Annotated[str | None, option(
        "Network of the features: torchvision:NAME@LAYER, hf:ID#tokens, python:FILE.py:FUNCTION.",
        "NAME", DETECTOR, default="the detector",
    )] = None  # fmt: skip
    backbone_weights: Annotated[str | None, option(
        "Weights of a torchvision backbone: a file, a URL, random:SEED, or default for torchvision's own.",
        "FILE", DETECTOR, advanced=True,
    )] = None  # fmt: skip
    pool: Annotated[str | None, option(
        "How a backbone computes the features of a box: roi (from its map of the photo) or crop (one pass for each "
        "box).", "KIND", DETECTOR,
        default="roi, or crop where the layer has no map", advanced=True,
    )] = None  # fmt: skip
    queries: Annotated[str | None, option(
        "Texts that a zero-shot detector looks for, one on each line.", "FILE", DETECTOR, advanced=True,
    )] = None  # fmt: skip
    conventions: Annotated[str | None, option(
        "Published extractor to reproduce exactly: hf, d2, caffe, milvlg, vinvl, vlbert-e2e and others.", "NAME",
        DETECTOR, default="those of the preset or of the detector's folder", advanced=True,
    )] = None  # fmt: skip
    selection: Annotated[str | None, option(
        "Rule that selects the regions: butd-36, vl-bert, hf-36 and others.", "NAME", DETECTOR,
        default="that of the preset; butd-10-100 with a detector's folder", advanced=True,
    )] = None  # fmt: skip
    set: Annotated[tuple[str, ...], option(
        "Change one setting, as section.field=value; may be given several times. Sections: detector, backbone, "
        "conventions, selection.", "FIELD=VALUE", DETECTOR,
    )] = ()  # fmt: skip
    vocab: Annotated[str | None, option(
        "Class names: vg, a file, or a folder with objects_vocab.txt and attributes_vocab.txt.", "DIR", DETECTOR,
        default="those of the detector",
    )] = None  # fmt: skip
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_lists(self, "set")


@renamed(settings="set", vocabulary="vocab", mode="precision and batched")
@dataclass(frozen=True)
class RequestedDetector(DetectorOptions):
    """Detector of the regions, and how it computes."""

    precision: Annotated[str, option(
        "Number type that the network computes in: float32, or tf32 (NVIDIA GPUs) or bf16, which are faster and less "
        "exact.", "TYPE", SPEED, advanced=True,
    )] = "float32"  # fmt: skip
    batched: Annotated[bool, option(
        "Compute photos of one size together: faster, but the last digits may differ. Only with --precision float32.",
        "", SPEED, advanced=True,
    )] = False  # fmt: skip
    threads: Threads = None
    grid: Annotated[str | None, option(
        "For grid features: store the mean of each cell of a coarser grid, such as 7x7.", "ROWSxCOLUMNS", DETECTOR,
        default="every cell", advanced=True,
    )] = None  # fmt: skip

    @property
    def mode(self) -> str:
        """Name of how the network computes, as the store records it; see `roibeam.extraction.fast.modes`."""
        if self.precision not in _MODES:
            raise ValueError(f"--precision {self.precision!r}: choose one of {', '.join(_MODES)}")
        if not self.batched:
            return _MODES[self.precision]
        if self.precision != "float32":
            raise ValueError(f"--batched goes with --precision float32, got {self.precision}; leave one of them out")
        return "batched"


@dataclass(frozen=True)
class RequestedRecords:
    """Options of the records: as of `roibeam.extraction.engine.extract_options.ExtractOptions`."""

    dtype: Annotated[str, option(
        "Number type of the stored features: float16, bfloat16 or float32.", "TYPE", KEPT, advanced=True,
    )] = "float16"  # fmt: skip
    distribution: Annotated[str, option(
        "Class probabilities to store for each region: full, top-K or none.", "KIND", KEPT, advanced=True,
    )] = "full"  # fmt: skip
    max_pixels: MaxPixels = 120_000_000
    decode_threads: Annotated[int, option(
        "Threads that read and decode photos ahead.", "N", SPEED, min=1, advanced=True,
    )] = 2  # fmt: skip
    image_feature: Annotated[str, option(
        "Also store a feature of the whole photo: none, region, or NETWORK=FILE of torchvision.", "KIND", DETECTOR,
        advanced=True,
    )] = "none"  # fmt: skip
    load_timeout: Annotated[float, option(
        "Seconds after which a photo that is still being read counts as failed.", "SECONDS", FAILURES, advanced=True,
    )] = 120.0  # fmt: skip
    detect_timeout: Annotated[float, option(
        "Seconds after which a detector that does not answer stops the run.", "SECONDS", FAILURES, advanced=True,
    )] = 900.0  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """Beam runner of an extraction.

    Attributes:
        beam_args: further Beam pipeline options, as after -- on the command line.
    """

    runner: Annotated[str, option(
        "Beam runner: local, portable, flink, spark, dataflow or another one. Options after -- are passed to it.",
        "NAME", SPEED, advanced=True,
    )] = "local"  # fmt: skip
    beam_args: tuple[str, ...] = ()
    workers: Annotated[int, option(
        "Processes of the local runner.", "N", SPEED, min=1,
    )] = 1  # fmt: skip
    pool_token_file: Annotated[str | None, option(
        "File with the token of the worker pools. For --runner flink or spark.", "FILE", NETWORK, advanced=True,
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        check_lists(self, "beam_args")


@renamed(as_json="json")
@dataclass(frozen=True, kw_only=True)
class RunOptions(RunnerChoice):
    """Options of a run that do not change what the store holds."""

    max_failures: Annotated[float, option(
        "Exit with an error if more than this share fails.", "SHARE", FAILURES, min=0, max=1,
    )] = 0.05  # fmt: skip
    retry_dead_letters: Annotated[bool, option(
        "Try failed images again; the other records of their shards are kept.", "", FAILURES, advanced=True,
    )] = False  # fmt: skip
    json: Json = False
    scratch: Annotated[str | None, option(
        "Folder for temporary copies of files at URLs. Each worker needs room for one shard.",
        "DIR", SPEED, default="the temporary folder", advanced=True,
    )] = None  # fmt: skip


@dataclass(frozen=True)
class ExtractRequest:
    """A whole extraction, see `roibeam.pipelines.run_extract`."""

    images: RequestedImages
    out: Annotated[str, argument("OUT", "Store to write: a folder, or a URL (s3://, gs://, hdfs://).")]
    detector: RequestedDetector = RequestedDetector()
    records: RequestedRecords = RequestedRecords()
    run: RunOptions = RunOptions()
    shard_size: Annotated[int | None, option(
        "Number of images in each new shard. Older shards stay as they are.", "N", KEPT, min=1,
        default="ten minutes of work, at most 4,000; 1,000 for GPUs of a cluster", advanced=True,
    )] = None  # fmt: skip


@dataclass(frozen=True)
class ArrayOptions:
    """Options of a dry run that plans an array job of a batch queue."""

    gpus: Annotated[int | None, option(
        "With --dry-run: print hours, disk and a Slurm array job for so many GPUs, one each job.", "N", SPEED, min=1,
        default="no array job",
    )] = None  # fmt: skip
    images: Annotated[int | None, option(
        "With --gpus: images of the whole run, if SOURCE here is a sample of them.", "N", SPEED, min=1,
        default="those of SOURCE",
    )] = None  # fmt: skip
    speed: Annotated[float | None, option(
        "With --gpus: images per second of one GPU, if you have measured it.", "RATE", SPEED, min=0,
        default="measured here, else in BENCHMARKS.md", advanced=True,
    )] = None  # fmt: skip

    def planned(self, request: ExtractRequest, *, dry_run: bool) -> ExtractRequest:
        """The request of the jobs, which take a GPU unless it says otherwise. Raises ValueError for options that do not
        go together."""
        values = {"--gpus": self.gpus, "--images": self.images, "--speed": self.speed}
        given = ", ".join(name for name, value in values.items() if value is not None)
        if given and not dry_run:
            raise ValueError(f"{given}: for the plan of an array job; add --dry-run, or leave it out")
        if given and self.gpus is None:
            raise ValueError(f"{given}: goes with --gpus, the number of GPUs of an array job")
        if self.speed == 0:
            raise ValueError("--speed 0: expected images per second, more than 0")
        if self.gpus is None:
            return request
        if request.run.runner != "local" or request.run.workers > 1:
            raise ValueError("--gpus: each job is one process on one GPU; leave --runner and --workers out")
        if request.images.part != "1/1":
            raise ValueError("--gpus: the array job makes the parts; leave --part out")
        detector = request.detector
        return replace(request, detector=replace(detector, device=detector.device.replace("auto", "cuda")))
