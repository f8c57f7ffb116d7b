"""A request becomes work: detector chosen, images listed, boxes and captions joined. Nothing is written, and neither
torch nor Beam is imported: what is wrong with a request is said at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.features.counted import counted
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.extract.request import ExtractRequest, RequestedImages, RequestedRecords, RunOptions
from roibeam.pipelines.extract.requested_detector import ON_THIS_MACHINE, open_detector
from roibeam.pipelines.extract.shard.store_folder import check_output_folder
from roibeam.pipelines.extract.work import Work
from roibeam.pipelines.foundation.device_choice import check_device_name, choose_device
from roibeam.pipelines.foundation.files.named_files import check_named_files
from roibeam.pipelines.foundation.files.remote_files import is_url, use_beam_options
from roibeam.pipelines.sources.captions.caption_join import GivenCaptions, give_captions
from roibeam.pipelines.sources.datasets.folder import is_pattern
from roibeam.pipelines.sources.given_boxes import GivenBoxes, give_boxes
from roibeam.pipelines.sources.held_out import HeldOut, LeakReport, keep_out
from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source
from roibeam.pipelines.sources.source_kinds import Source, check_images_are_there, open_sources
from roibeam.pipelines.sources.vocabulary import PUBLISHED_LISTS


def open_work(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work:
    """The work that a request asks for.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line: whatever of the request is unknown, does not fit together or cannot be opened.
    """
    _check_files(request)
    check_device_name(request.detector.device)
    options = _options(request.records)
    threads = _threads(request.detector.threads, request.run)
    store = _store(request)
    check_output_folder(store)
    detector = open_detector(request, store, threads, tell=tell)
    spec = detector.spec
    source, leaks = _source(request.images)
    source, boxes = _with_boxes(source, request.images)
    source, captions = _with_captions(source, request.images)
    work = Work(source, store, spec, options, detector.vocabulary, request.shard_size, boxes, captions, leaks)
    check_images_are_there(work.source)
    # What this machine has, torch says: it comes last, when nothing is wrong with what was named.
    device, device_words = choose_device(spec.device, here=request.run.runner in ON_THIS_MACHINE)
    if not request.run.as_json:
        tell(device_words)
        tell(f"{counted(len(work.source.images), 'image')} in {_place(request, work)}")
    return replace(work, detector=replace(spec, device=device))


def _check_files(request: ExtractRequest) -> None:
    """Raises ValueError with all files that were named and are not there."""
    images, detector = request.images, request.detector
    (source, *more) = images.sources  # of several, the one that opens them tells more
    check_named_files(
        [
            ("SOURCE", None if more or is_pattern(source) else source),
            ("--photos", images.image_root),
            ("--boxes", images.boxes),
            ("--captions", images.captions),
            ("--weights", detector.weights),
            ("--vocab", None if detector.vocabulary == PUBLISHED_LISTS else detector.vocabulary),
        ]
    )


def _place(request: ExtractRequest, work: Work) -> str:
    """Where the images are, for the user."""
    source, (first, *more) = work.source, request.images.sources
    if more:
        return f"{len(more) + 1} sources below {source.location}"
    beside = (source.location, os.path.dirname(source.location))
    was_found = request.images.image_root is None and os.path.isfile(first) and source.image_root not in beside
    return f"{first}, photos in {source.image_root}" if was_found else first


def _options(asked: RequestedRecords) -> ExtractOptions:
    return ExtractOptions(
        feature_dtype=asked.dtype,
        distribution=asked.distribution,
        max_pixels=asked.max_pixels,
        decode_threads=asked.decode_threads,
        image_feature=asked.image_feature,
        load_timeout=asked.load_timeout,
        detect_timeout=asked.detect_timeout,
    )


def _threads(asked: int | None, run: RunOptions) -> int | None:
    """CPU threads of each process: local workers share them."""
    if run.workers <= 1:
        return asked
    if run.runner != "local":
        raise ValueError(
            f"--workers {run.workers} goes with --runner local; {run.runner} has its own options, after --"
        )
    return asked or max(1, (os.cpu_count() or 1) // run.workers)


def _store(request: ExtractRequest) -> OutputFolder:
    if any(map(is_url, request.images.sources)) or is_url(request.images.image_root or ""):
        use_beam_options(request.run.beam_args)
    store = output_folder(request.out if "://" in request.out else os.path.abspath(request.out))
    if request.run.scratch is not None and store.local_path is not None:
        raise ValueError("--scratch is for stores at a URL; a store on a disk is written in its own folder")
    if store.local_path is not None:  # of a URL it is looked at when the run begins
        check_output_folder(store)
    return store


def _source(asked: RequestedImages) -> tuple[Source, LeakReport | None]:
    source = open_sources(asked.sources, image_root=asked.image_root, id_rule=asked.id_rule)
    if not asked.held_out:
        return source, None
    data_set = checked_data_set(asked.images_of, data_set_of_source(source))
    return keep_out(HeldOut(asked.held_out), source, data_set, leave_out=asked.leave_out_held_out)


def _with_boxes(source: Source, asked: RequestedImages) -> tuple[Source, GivenBoxes | None]:
    return (source, None) if asked.boxes is None else give_boxes(source, asked.boxes)


def _with_captions(source: Source, asked: RequestedImages) -> tuple[Source, GivenCaptions | None]:
    return (
        (source, None) if asked.captions is None else give_captions(source, asked.captions, min_match=asked.min_match)
    )
