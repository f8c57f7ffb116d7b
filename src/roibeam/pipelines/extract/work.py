"""An extraction request opened as work: the detector is chosen, images are listed, boxes and captions are joined.

Nothing is written, and neither torch nor Beam is imported, so that errors of a request are reported at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.local_folder import output_folder
from roibeam.messages import plural
from roibeam.pipelines.common.compute import DeviceChoice, choose_device, workers_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles, check_output_is_no_file
from roibeam.pipelines.common.console.request_options import part_of
from roibeam.pipelines.common.image_ids import check_id_prefix
from roibeam.pipelines.common.remote_files import is_url, use_beam_options, why_not_reached
from roibeam.pipelines.data.captions.caption_join import GivenCaptions, give_captions
from roibeam.pipelines.data.datasets.photo_folders import is_pattern
from roibeam.pipelines.data.feature_settings import OTHER_SETTINGS, flat_settings, other_run_error, setting_changes
from roibeam.pipelines.data.given_boxes import GivenBoxes, give_boxes
from roibeam.pipelines.data.held_out import HeldOut, LeakReport, keep_out
from roibeam.pipelines.data.image_identity import checked_data_set, data_set_of_source
from roibeam.pipelines.data.shard_plan import Plan, read_plan
from roibeam.pipelines.data.source_kinds import Source, check_images_are_there, one_part, open_sources, with_prefix
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.request import ExtractRequest, RequestedImages, RequestedRecords, RunOptions
from roibeam.pipelines.extract.requested_detector import (
    ON_THIS_MACHINE,
    RUNNERS,
    check_named_again,
    check_runner_name,
    need_detector,
    open_detector,
)
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.shard.store_folder import check_output_folder, is_unused_plan


@dataclass(frozen=True)
class Work:
    """Work of an extraction: everything that decides what a store holds.

    Attributes:
        store: folder to write, on a disk or at a URL.
        shard_size: images per new shard; None means about ten minutes of work, at most 4,000, or `UNTIMED_SHARD_IMAGES`
            where the time cannot be taken here.
        boxes: of every image of the source; None where the detector proposes.
        captions: where the user gave them for a source without any.
        leaks: report on held-out images of the source, where the user named rules.
        is_held_out: whether an image id must not be in the store; likewise.
        plan: the store's when the work was opened; None where there was none.
        own_detector: the same detector as this process can build it, where `detector` computes on GPUs of other
            machines; None where there is one for both.
    """

    source: Source
    store: OutputFolder
    detector: DetectorSpec
    options: ExtractOptions
    vocabulary: Vocabulary
    shard_size: int | None = None
    boxes: GivenBoxes | None = None
    captions: GivenCaptions | None = None
    leaks: LeakReport | None = None
    own_detector: DetectorSpec | None = None
    is_held_out: Callable[[str], bool] | None = None
    plan: Plan | None = None

    @property
    def detector_here(self) -> DetectorSpec:
        """Detector that this process builds to plan: equal in the meaning of features, not in device and mode."""
        return self.own_detector or self.detector


@dataclass(frozen=True)
class UnlistedWork:
    """Work of a dry run where the images are at a URL that cannot be read from here.

    Attributes:
        reason: why they cannot be listed, in a line.
    """

    detector: DetectorSpec
    reason: str


_ONE_SLASH = re.compile(r"(gs|s3|hdfs|azfs):/([^/].*)")  # a URL of which one slash is missing
_FILE_SUFFIXES = (".h5", ".hdf5", ".lmdb", ".tsv", ".npz", ".npy", ".pkl")  # of other code bases' feature files
NO_STORE = "memory://dry-run"  # an empty one


def open_work(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work:
    """Opens the work of a request.

    Args:
        tell: called with each remark for the user, a line.
    """
    run = request.run
    _check(request, runs_here=run.runner in ON_THIS_MACHINE)
    if run.runner in RUNNERS and run.runner not in ON_THIS_MACHINE:
        from roibeam.pipelines.extract.runners.pipeline_run import check_needed  # with Beam, which the run needs anyway

        check_needed(run.runner, run.beam_args)
    work = _open(request, _store(request), tell, to_plan=False)
    assert isinstance(work, Work)
    return work


def open_plan(request: ExtractRequest, *, tell: Callable[[str], None]) -> Work | UnlistedWork:
    """The work for a dry run, which may be made where there is no GPU, no driver of a cluster's files and no cluster.

    A store at a URL is not read: all images count as new. Images at a URL that cannot be listed are no error.
    """
    _check(request, runs_here=False)
    if is_url(request.out):
        store = output_folder(NO_STORE)
        tell(f"note: {request.out} is not read: all images count as new")
    else:
        store = _store(request)
    return _open(request, store, tell, to_plan=True)


def _check(request: ExtractRequest, *, runs_here: bool) -> None:
    """Checks that need nothing opened.

    Args:
        runs_here: as of `need_detector`.
    """
    if os.path.isdir(request.out) and (plan := read_plan(_store(request))) is not None:
        check_named_again(request.detector, plan, request.out)  # before weights are missed
    _check_names(request, runs_here=runs_here)
    check_id_prefix(request.images.id_prefix)
    part_of(request.images.part)  # refuses what is none
    _options(request.records)
    _threads(request.detector.threads, request.run)
    if request.run.beam_args:
        from roibeam.pipelines.extract.runners.pipeline_run import check_known  # with Beam, which takes two seconds

        check_known(request.run.runner, request.run.beam_args)


def _open(
    request: ExtractRequest, store: OutputFolder, tell: Callable[[str], None], *, to_plan: bool
) -> Work | UnlistedWork:
    plan = check_output_folder(store)
    begun = None if plan is None or is_unused_plan(store, plan) else plan
    threads = _threads(request.detector.threads, request.run)
    spec, vocabulary = open_detector(request, store, begun, threads, tell=tell)
    for location in filter(is_url, request.images.sources if to_plan else ()):
        if reason := why_not_reached(location):
            return UnlistedWork(dataclasses.replace(spec, device=_device(request, spec, to_plan=True).name), reason)
    source, leaks, is_held_out = _source(request.images)
    source, boxes = (source, None) if request.images.boxes is None else give_boxes(source, request.images.boxes)
    source, captions = _with_captions(source, request.images)
    source = one_part(source, part_of(request.images.part))
    if prefix := request.images.id_prefix:  # last: what is joined names images as the source does
        source, boxes = with_prefix(source, prefix), None if boxes is None else boxes.with_prefix(prefix)
    work = Work(
        source, store, spec, _options(request.records), vocabulary, request.shard_size, boxes, captions, leaks,
        is_held_out=is_held_out, plan=plan,
    )  # fmt: skip
    check_images_are_there(work.source)
    if begun is not None:
        _check_settings(work, begun)
    # Torch finds the machine's devices; it comes last, when the request has no error.
    return _on_its_device(request, work, tell, to_plan=to_plan)


def _check_settings(work: Work, plan: Plan) -> None:
    """Raises ValueError where the store was made with other settings, as far as they are in the request; those that
    only the network knows are compared by `planning.fitting_plan`."""
    known: dict[str, Any] = {"feature_dtype": work.options.feature_dtype, "vocabulary": work.vocabulary.digest}
    config = work.detector.config
    if work.boxes is None and not getattr(config, "grid", ""):  # their plans have fewer
        known["regions"] = dataclasses.asdict(work.detector.selection)
        if isinstance(config, DetectorConfig) and work.detector.backbone is None:  # others know their rules themselves
            known["detector"] = {"conventions": dataclasses.asdict(work.detector.conventions)}
    settings = {"distribution": work.options.distribution, "mode": work.detector.mode, "feature_space": known}
    now, planned = flat_settings(json.loads(json.dumps(settings))), flat_settings(plan.settings)
    both = now.keys() & planned.keys()
    if changes := setting_changes({name: planned[name] for name in both}, {name: now[name] for name in both}):
        raise ValueError(other_run_error(work.store, OTHER_SETTINGS, changes))


def _device(request: ExtractRequest, spec: DetectorSpec, *, to_plan: bool) -> DeviceChoice:
    if request.run.runner not in ON_THIS_MACHINE:
        return workers_device(spec.device)
    return choose_device(
        spec.device, threads=spec.threads, processes=request.run.workers, spreads=True, to_plan=to_plan
    )


def _on_its_device(request: ExtractRequest, work: Work, tell: Callable[[str], None], *, to_plan: bool) -> Work:
    """The same work with its device; reports device and number of images to the user."""
    chosen = _device(request, work.detector, to_plan=to_plan)
    if not request.run.json:
        tell(chosen.words)
        tell(f"{plural(len(work.source.images), 'image')} in {_place(request, work)}")
    detector = dataclasses.replace(work.detector, device=chosen.name)
    # A driver needs no GPU of its own. What it learns of its detector does not depend on mode and device.
    own = None if chosen.is_here else dataclasses.replace(detector, device="cpu", mode="exact")
    return dataclasses.replace(work, detector=detector, own_detector=own)


def _check_names(request: ExtractRequest, *, runs_here: bool) -> None:
    """Raises ValueError with all names that are unknown, and all files that are not there or of another kind."""
    images, detector, out = request.images, request.detector, request.out
    named = NamedFiles()
    what = "SOURCE" if len(images.sources) == 1 else "SOURCE (the last argument is the store)"
    for source in images.sources:
        is_there = named.need(what, None if is_pattern(source) else source)
        if not is_there and os.path.exists(out) and _is_photos(out):
            named.refuse(f"OUT {out!r} holds photos: are the two in the wrong order? The photos come first")
    named.need("--photos", images.photos, FOLDER)
    named.need("--boxes", images.boxes)
    named.need("--captions", images.captions, FILE)
    need_detector(named, detector, runs_here=runs_here, with_boxes=images.boxes is not None)
    named.look(lambda: detector.mode)
    named.look(lambda: _check_out(out, images.sources))
    named.look(lambda: check_runner_name(request.run.runner))
    named.check()


def _is_photos(path: str) -> bool:
    names = os.listdir(path) if os.path.isdir(path) else [path]
    return any(os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in names)


def _check_out(out: str, sources: Sequence[str]) -> None:
    """Raises ValueError where no store can be written, or where the next run would look for photos in it."""
    if is_url(out):
        return
    if os.path.isfile(out):
        hint = "; a shell makes photos/*.jpg many names: quote the pattern" if len(sources) > 1 else ""
        raise ValueError(f"OUT {out!r} is a file; the last argument is the folder to write the store into{hint}")
    suffix = Path(out).suffix.lower()
    if suffix in _FILE_SUFFIXES and not os.path.isdir(out):
        folder = out[: -len(suffix)]
        raise ValueError(
            f"OUT {out!r}: a store is a folder, no {suffix} file; write a store first: roibeam extract ... {folder}; "
            f"then roibeam store export {folder} {out} --format NAME"
        )
    check_output_is_no_file(out)
    for source in sources:
        if os.path.isdir(source) and Path(out).resolve().is_relative_to(Path(source).resolve()):
            raise ValueError(f"OUT {out!r} lies in SOURCE {source!r}, which is only read; name a folder beside it")


def _place(request: ExtractRequest, work: Work) -> str:
    """Location of the images, for the user."""
    source, (first, *more) = work.source, request.images.sources
    if more:
        return f"{len(more) + 1} sources below {source.location}"
    beside = (source.location, os.path.dirname(source.location))
    was_found = request.images.photos is None and os.path.isfile(first) and source.image_root not in beside
    return f"{first}, photos in {source.image_root}" if was_found else first


def _options(request: RequestedRecords) -> ExtractOptions:
    fields = dataclasses.asdict(request)
    return ExtractOptions(feature_dtype=fields.pop("dtype"), **fields)


def _threads(request: int | None, run: RunOptions) -> int | None:
    """CPU threads of each process: local workers share them."""
    if run.workers <= 1:
        return request
    if run.runner != "local":
        raise ValueError(
            f"--workers {run.workers} goes with --runner local; {run.runner} has its own options, after --"
        )
    return request or max(1, (os.cpu_count() or 1) // run.workers)


def _store(request: ExtractRequest) -> OutputFolder:
    if any(map(is_url, request.images.sources)) or is_url(request.images.photos or ""):
        use_beam_options(request.run.beam_args)
    if slash := _ONE_SLASH.match(request.out):
        raise ValueError(f"OUT {request.out!r}: a slash is missing; write {slash[1]}://{slash[2]}")
    store = output_folder(request.out if "://" in request.out else os.path.abspath(request.out))
    if request.run.scratch is not None and store.local_path is not None:
        raise ValueError("--scratch is for stores at a URL; a store on a disk is written in its own folder")
    return store


def _source(request: RequestedImages) -> tuple[Source, LeakReport | None, Callable[[str], bool] | None]:
    """The images, the report on held-out ones, and the test whether an image id is held out."""
    source = open_sources(
        request.sources,
        image_root=request.photos,
        id_rule=request.id_rule,
        skip_bad_archives=request.skip_bad_archives,
        caption_column=request.caption_column if request.captions is None else "",
        # A name in a file may mean images of two archives: it is looked for among all.
        part=part_of(request.part if request.captions is request.boxes is None else "1/1"),
    )
    if request.skip_bad_archives and source.kind != "archives":
        raise ValueError(
            f"--skip-bad-archives is for a folder or pattern of .tar or .zip archives; leave it out for "
            f"{source.location!r}"
        )
    if not request.held_out:
        return source, None, None
    data_set = checked_data_set(request.numbers_of, data_set_of_source(source))
    rules = HeldOut(request.held_out, id_prefix=request.id_prefix)
    source, leaks = keep_out(rules, source, data_set, leave_out=request.drop_held_out)
    return source, leaks, lambda image_id: rules.holds_out(image_id.removeprefix(request.id_prefix), data_set)


def _with_captions(source: Source, request: RequestedImages) -> tuple[Source, GivenCaptions | None]:
    if request.captions is None:
        return source, None
    return give_captions(source, request.captions, min_match=request.min_match, caption_column=request.caption_column)
