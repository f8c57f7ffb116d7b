"""A request becomes work: detector chosen, images listed, boxes and captions joined. Nothing is written, and neither
torch nor Beam is imported: what is wrong with a request is said at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import PUBLISHED_EDGES
from roibeam.extraction.network.selection_policy import SELECTIONS
from roibeam.features.counted import counted
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.pipelines.extract.request import (
    DEFAULT_SELECTION,
    ExtractRequest,
    RequestedDetector,
    RequestedImages,
    RequestedRecords,
    RunOptions,
)
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.shard.store_folder import check_output_folder
from roibeam.pipelines.extract.work import Work
from roibeam.pipelines.foundation.files.named_files import check_named_files
from roibeam.pipelines.foundation.files.remote_files import is_url, use_beam_options
from roibeam.pipelines.foundation.overrides import apply_overrides, preset
from roibeam.pipelines.model_files.detector_choice import ChosenDetector, choose_detector
from roibeam.pipelines.sources.captions.caption_join import GivenCaptions, give_captions
from roibeam.pipelines.sources.datasets.folder import is_pattern
from roibeam.pipelines.sources.given_boxes import GivenBoxes, give_boxes
from roibeam.pipelines.sources.held_out import HeldOut, LeakReport, keep_out
from roibeam.pipelines.sources.image_identity import checked_data_set, data_set_of_source
from roibeam.pipelines.sources.source_kinds import Source, check_images_are_there, open_source
from roibeam.pipelines.sources.vocabulary import PUBLISHED_LISTS, Vocabulary, load_vocabulary


def open_work(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work:
    """The work that a request asks for.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line: whatever of the request is unknown, does not fit together or cannot be opened.
    """
    _check_files(request)
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
    if not request.run.as_json:
        tell(f"{counted(len(work.source.images), 'image')} in {request.images.source}")
    return work


def _check_files(request: ExtractRequest) -> None:
    """Raises ValueError with all files that were named and are not there."""
    images, detector = request.images, request.detector
    check_named_files(
        [
            ("SOURCE", None if is_pattern(images.source) else images.source),
            ("--image-root", images.image_root),
            ("--boxes", images.boxes),
            ("--captions", images.captions),
            ("--weights", detector.weights),
            ("--vocab", None if detector.vocabulary == PUBLISHED_LISTS else detector.vocabulary),
        ]
    )


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
    if not re.fullmatch(r"(cpu|cuda)(:[0-9]+)?", device):
        raise ValueError(f"--device {device!r}: expected cpu, cuda or cuda:<n>")
    kind, _, number = device.partition(":")
    if kind == "cuda" and runner == "local":  # with another runner the devices are those of its workers
        import torch

        if int(number or 0) >= torch.cuda.device_count():
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
    if store.local_path is not None:  # of a URL it is looked at when the run begins
        check_output_folder(store)
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
