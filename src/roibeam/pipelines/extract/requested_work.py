"""A request becomes work: detector chosen, images listed, boxes and captions joined. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.extract.new_work import Work
from roibeam.pipelines.extract.request import ExtractRequest, RequestedImages, RequestedRecords, RunOptions
from roibeam.pipelines.extract.requested_detector import open_detector
from roibeam.pipelines.extract.shard.store_folder import check_output_folder
from roibeam.pipelines.foundation.files.remote_files import is_url, use_beam_options
from roibeam.pipelines.sources.captions.caption_join import GivenCaptions, give_captions
from roibeam.pipelines.sources.given_boxes import GivenBoxes, give_boxes
from roibeam.pipelines.sources.held_out import HeldOut, LeakReport, keep_out
from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source
from roibeam.pipelines.sources.source_kinds import Source, check_images_are_there, open_sources


def open_work(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work:
    """The work that a request asks for.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line: whatever of the request is unknown, does not fit together or cannot be opened.
    """
    options = _options(request.records)
    threads = _threads(request.detector.threads, request.run)
    store = _store(request)
    check_output_folder(store)
    detector = open_detector(request, store, threads, tell=tell)
    source, leaks = _source(request.images)
    source, boxes = _with_boxes(source, request.images)
    source, captions = _with_captions(source, request.images)
    work = Work(source, store, detector.spec, options, detector.vocabulary, request.shard_size, boxes, captions, leaks)
    check_images_are_there(work.source)
    return work


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
