"""A request becomes work: detector chosen, images listed, boxes and captions joined. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import PUBLISHED_EDGES
from roibeam.extraction.selection import SELECTIONS
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.extract.new_work import Work
from roibeam.pipelines.extract.request import (
    DEFAULT_SELECTION,
    ExtractRequest,
    RequestedDetector,
    RequestedImages,
    RequestedRecords,
    RunOptions,
)
from roibeam.pipelines.extract.shard.job import DetectorSpec
from roibeam.pipelines.foundation.files.remote_files import is_url, use_beam_options
from roibeam.pipelines.foundation.overrides import apply_overrides, preset
from roibeam.pipelines.model_files.detector_choice import ChosenDetector, choose_detector
from roibeam.pipelines.sources.captions.caption_join import GivenCaptions, give_captions
from roibeam.pipelines.sources.given_boxes import GivenBoxes, give_boxes
from roibeam.pipelines.sources.held_out import HeldOut, LeakReport, keep_out
from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source
from roibeam.pipelines.sources.source_kinds import Source, check_images_are_there, open_source
from roibeam.pipelines.sources.vocabulary import Vocabulary, load_vocabulary


def open_work(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work:
    """The work that a request asks for.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line: whatever of the request is unknown, does not fit together or cannot be opened.
    """
    chosen, sections = _chosen_detector(request.detector)
    options = _options(request.records)
    _check_device(request.detector.device, request.run.runner)
    threads = _threads(request.detector.threads, request.run)
    store = _store(request)
    source, leaks = _source(request.images)
    _tell_of_conventions(request, tell)
    source, boxes = _with_boxes(source, request, tell)
    source, captions = _with_captions(source, request.images)
    if not chosen.is_folder and request.detector.detector != "small":  # the reduced network has no published size
        _tell_of_edges(request.detector.conventions or "hf", sections["detector"], tell)
    spec = DetectorSpec(
        sections["detector"], sections["selection"], chosen.weights, request.detector.device, threads,
        sections["conventions"], request.detector.mode,
    )  # fmt: skip
    vocabulary = _vocabulary(request.detector.vocabulary, chosen, sections["detector"])
    work = Work(source, store, spec, options, vocabulary, request.shard_size, boxes, captions, leaks)
    check_images_are_there(work.source)
    return work


def _chosen_detector(asked: RequestedDetector) -> tuple[ChosenDetector, dict[str, Any]]:
    """The detector, and its sections as the settings change them."""
    chosen = choose_detector(asked.detector, weights=asked.weights, conventions=asked.conventions)
    selection = preset("selection", asked.selection or DEFAULT_SELECTION, SELECTIONS)
    sections = {"detector": chosen.config, "conventions": chosen.conventions, "selection": selection}
    return chosen, apply_overrides(sections, asked.settings)


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


def _check_device(device: str, runner: str) -> None:
    try:
        parsed = torch.device(device)
    except RuntimeError:
        raise ValueError(f"--device {device!r}: expected cpu, cuda or cuda:<n>") from None
    if parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device!r}: expected cpu, cuda or cuda:<n>")
    # With another runner the devices are those of its workers.
    if runner == "local" and parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {device!r}: torch sees {torch.cuda.device_count()} CUDA devices here")


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
    if is_url(request.images.source) or is_url(request.images.image_root or ""):
        use_beam_options(request.run.beam_args)
    store = output_folder(request.out if "://" in request.out else os.path.abspath(request.out))
    if request.run.scratch is not None and store.local_path is not None:
        raise ValueError("--scratch is for stores at a URL; a store on a disk is written in its own folder")
    return store


def _source(asked: RequestedImages) -> tuple[Source, LeakReport | None]:
    source = open_source(asked.source, image_root=asked.image_root, id_rule=asked.id_rule)
    if not asked.held_out:
        return source, None
    data_set = checked_data_set(asked.images_of, data_set_of_source(source))
    return keep_out(HeldOut(asked.held_out), source, data_set, leave_out=asked.leave_out_held_out)


def _with_boxes(
    source: Source, request: ExtractRequest, tell: Callable[[str], None]
) -> tuple[Source, GivenBoxes | None]:
    if request.images.boxes is None:
        return source, None
    source, boxes = give_boxes(source, request.images.boxes)
    asked = request.detector
    if asked.selection is not None or any(setting.strip().startswith("selection.") for setting in asked.settings):
        tell("note: --selection does nothing with --boxes: every given box is kept")
    return source, boxes


def _with_captions(source: Source, asked: RequestedImages) -> tuple[Source, GivenCaptions | None]:
    return (
        (source, None) if asked.captions is None else give_captions(source, asked.captions, min_match=asked.min_match)
    )


def _vocabulary(asked: str | None, chosen: ChosenDetector, config: DetectorConfig) -> Vocabulary:
    if asked is None:
        return chosen.vocabulary
    return load_vocabulary(asked, num_classes=config.num_classes, num_attributes=config.num_attributes or None)


def _tell_of_conventions(request: ExtractRequest, tell: Callable[[str], None]) -> None:
    if request.images.boxes is None and request.detector.conventions == "vlbert-e2e":
        tell("note: vlbert-e2e was published for given boxes (--boxes); its proposals are nobody's")


def _tell_of_edges(conventions: str, config: DetectorConfig, tell: Callable[[str], None]) -> None:
    """Says so when photos are resized to another size than published features of these conventions come from."""
    published, edges = PUBLISHED_EDGES[conventions], (config.short_edge, config.long_edge)
    if edges not in published:
        short, long = published[0]
        tell(
            f"note: photos are resized to {edges[0]}/{edges[1]} pixels (short edge, limit of the long one); published "
            f"features of the conventions {conventions} come from {short}/{long}, which --detector "
            f"{'vg-r101-c4' if short == 800 else 'vg-r101-c4-600'} has"
        )
