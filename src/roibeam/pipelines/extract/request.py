"""Request of an extraction: plain data, checked when it is opened (`work.open_work`)."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.messages import check_lists
from roibeam.pipelines.data.compatibility import MIN_MATCH


@dataclass(frozen=True)
class RequestedImages:
    """Images to extract.

    Attributes:
        sources: as `roibeam.pipelines.data.source_kinds.open_sources` takes them.
        image_root: folder or URL that the paths in an annotation file are below; None to look for it.
        id_rule: of image ids, no-extension or with-extension.
        id_prefix: to put before each id, a folder with a slash at its end; "" for none.
        skip_bad_archives: of a folder or pattern of archives, leave out damaged ones, with a note.
        boxes: file or folder of the boxes to describe; None lets the detector propose. Images without any are left out.
        captions: caption file of a source that has none.
        caption_column: of `captions`, else of the source, see `open_source`; "" to find it.
        min_match: share of the images of `captions` (0..1) that the source must have.
        held_out: RULE=FILE each: images that must not be inside.
        leave_out_held_out: drop those instead of refusing them.
        images_of: data set that bare numbers in ids belong to, where the source has none.
    """

    sources: tuple[str, ...]
    image_root: str | None = None
    id_rule: str = "no-extension"
    id_prefix: str = ""
    skip_bad_archives: bool = False
    boxes: str | None = None
    captions: str | None = None
    min_match: float = MIN_MATCH
    held_out: tuple[str, ...] = ()
    leave_out_held_out: bool = False
    images_of: str | None = None
    caption_column: str = ""

    def __post_init__(self) -> None:
        check_lists(self, "sources", "held_out")


@dataclass(frozen=True)
class RequestedDetector:
    """Detector of the regions.

    Attributes:
        detector, preset, weights, conventions, selection: as of
            `extraction.weights.detector_choice.choose_detector`; what is None is as the store recorded it, where
            it holds features already.
        settings: "section.field=value" each, of the sections detector, conventions and selection.
        vocabulary: file or folder of the names of classes and attributes, or vg; None for those of the detector.
        device: auto (a GPU where there is one), cpu, cuda or cuda:<n>.
        mode: "exact" or a faster one, see `roibeam.extraction.fast.modes`.
        threads: CPU threads of each process; None for torch's choice, or a share each of several local workers.
    """

    detector: str | None = None
    preset: str | None = None
    weights: str | None = None
    conventions: str | None = None
    selection: str | None = None
    settings: tuple[str, ...] = ()
    vocabulary: str | None = None
    device: str = "auto"
    mode: str = "exact"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_lists(self, "settings")


@dataclass(frozen=True)
class RequestedRecords:
    """Options of the records: as of `roibeam.extraction.engine.extract_options.ExtractOptions`."""

    dtype: str = "float16"
    distribution: str = "full"
    max_pixels: int = 120_000_000
    decode_threads: int = 2
    image_feature: str = "none"
    load_timeout: float = 120.0
    detect_timeout: float = 900.0


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change what the store holds.

    Attributes:
        max_failures: share of failed images (0..1) above which the run counts as failed.
        retry_dead_letters: try failed images again; the records of their shards are kept.
        runner, beam_args, workers: see `roibeam.pipelines.extract.beam_extraction.run_extraction`.
        as_json: progress as JSON lines.
        scratch: see `roibeam.pipelines.extract.shard.shard_job.ExtractJob`.
        pool_token_file: with the token of the cluster's worker pools.
    """

    max_failures: float = 0.05
    retry_dead_letters: bool = False
    runner: str = "local"
    beam_args: tuple[str, ...] = ()
    workers: int = 1
    as_json: bool = False
    scratch: str | None = None
    pool_token_file: str | None = None

    def __post_init__(self) -> None:
        check_lists(self, "beam_args")


@dataclass(frozen=True)
class ExtractRequest:
    """A whole extraction, as requested from `roibeam extract`.

    Attributes:
        out: store to write, a folder or a URL; one that is there is continued.
        shard_size: images per new shard; None means about ten minutes of work, at most 4,000, and 1,000 for the GPUs of
            a cluster.
    """

    images: RequestedImages
    out: str
    detector: RequestedDetector = RequestedDetector()
    records: RequestedRecords = RequestedRecords()
    run: RunOptions = RunOptions()
    shard_size: int | None = None
