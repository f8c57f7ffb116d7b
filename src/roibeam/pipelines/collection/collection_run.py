"""One collection from the driver's side:

    check -> units of pages -> [Beam: steps 1 to 4] -> list of images -> download -> [Beam: steps 5 and 6]
          -> aggregation -> pairs, tables, photos -> report.html -> collection.json, last

A second run does what is missing. The result does not depend on workers or runner.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from roibeam.features.folders.durable_files import write_json_atomically
from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.folders.kept_work import DamagedError, read_summed_json, remove_unfinished, write_summed_json
from roibeam.messages import plural
from roibeam.pipelines.collection.aggregation import aggregate
from roibeam.pipelines.collection.beam_collection import PageJob, check_units_runner, run_units
from roibeam.pipelines.collection.fetch import UNITS_NAME, Fetch, fetch_images, gather, picture_units
from roibeam.pipelines.collection.outputs import write_pairs
from roibeam.pipelines.collection.page_units import PageUnit
from roibeam.pipelines.collection.pairs import Pair, pair_from_json
from roibeam.pipelines.collection.part import Counts, read_counts, read_rows
from roibeam.pipelines.collection.picture_job import PictureJob
from roibeam.pipelines.collection.report import (
    FORMAT,
    NUM_KEPT_EXAMPLES,
    VERSION,
    Collection,
    figures_of,
    largest_hosts,
    write_report,
)
from roibeam.pipelines.collection.request import CollectRequest, work_state
from roibeam.pipelines.collection.same_images import EvaluationImages
from roibeam.pipelines.collection.thresholds import KEEPS_RACY, PictureThresholds, Thresholds
from roibeam.pipelines.data.datasets.photo_folders import COLLECTION_NAME, DRAWN_WORLD, are_toy_photos
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.extract.request import RunnerChoice

log = logging.getLogger(__name__)
STATE_NAME, WORK_NAME = "state.json", "work"
PAGES_NAME, PICTURES_NAME = "pages", "pictures"
OFF_PICTURES = "step off: natural pictures (no judge; roibeam collect train-images makes one)"
OFF_PAIRS = "step off: semantic score (no judge; roibeam collect train-pairs makes one)"
OFF_NSFW = "step off: porn and racy pictures (--no-nsfw)"
OFF_NUDENET = (
    "step off: porn and racy pictures, which stay in the collection (nudenet is not installed: pip install "
    "'roibeam[collect]' and run again)"
)
RACY_STAY = (
    "racy pictures stay, as when this collection was begun; --set picture.max_racy="
    f"{PictureThresholds.max_racy:g} drops them"
)
OFF_EVALUATION = "no evaluation image is left out: name them with --held-out or --held-out-images"


def run_collection(
    request: CollectRequest, choice: RunnerChoice, *, tell: Callable[[str], None] = log.info
) -> Collection:
    """Runs a collection, as `roibeam collect run`.

    Args:
        tell: called with each remark for the user, a line.
    Raises:
        ValueError: one line for the user, before anything is written where possible.
        LocalFaultError, OSError, RuntimeError: a fault of this machine or of a worker; finished work is kept.
    """
    thresholds = request.check()
    units = request.units()
    out = request.out
    evaluation = EvaluationImages(
        request.held_out, request.held_out_images, max_bits=thresholds.aggregation.max_phash_bits
    )
    _check_folder(out)
    check_units_runner(choice)
    (out / WORK_NAME).mkdir(parents=True, exist_ok=True)
    with store_lock(out, held="another run is writing this collection"):
        for name in ("", WORK_NAME, *(f"{WORK_NAME}/{name}" for name in (PAGES_NAME, PICTURES_NAME, UNITS_NAME))):
            remove_unfinished(out / name, ".+")
        racy_stay = _check_state(out, work_state(thresholds, request.base_url, (unit.state for unit in units)))
        notes = _notes(request)
        if (
            racy_stay
            and request.looks_for_porn
            and not any(each.strip().startswith("picture.max_racy") for each in request.set)
        ):
            thresholds = replace(thresholds, picture=replace(thresholds.picture, max_racy=KEEPS_RACY))
            notes = (*notes, RACY_STAY)
        for note in notes:
            tell(note)
        tell(f"pages in {plural(len(units), 'unit')} of work")
        job = PageJob(str(out / WORK_NAME / PAGES_NAME), thresholds)
        run_units(job, units, choice, what="looking into pages", as_json=request.json)
        pages = read_counts(out / WORK_NAME / PAGES_NAME, len(units))
        fetch = gather(out / WORK_NAME, out / WORK_NAME / PAGES_NAME, len(units))
        fetched, pictures, pairs = _pictures(request, thresholds, fetch, choice, tell)
        found = aggregate(pairs, thresholds.aggregation, evaluation.names)
        figures = figures_of(found, hosts=largest_hosts(pages), num_examples=NUM_KEPT_EXAMPLES)
        done = Collection(pages, fetched, pictures, found, figures, notes)
        (out / COLLECTION_NAME).unlink(missing_ok=True)
        write_pairs(out, found)
        write_report(out, done)
        pages_of_web = are_toy_photos(os.path.join(unit.root, name) for unit in units for name in unit.names)
        drawn = {DRAWN_WORLD: True} if pages_of_web else {}
        write_json_atomically(out / COLLECTION_NAME, done.summary() | drawn)
        return done


def _pictures(
    request: CollectRequest, thresholds: Thresholds, fetch: Fetch, choice: RunnerChoice, tell: Callable[[str], None]
) -> tuple[Counts, Counts, Iterator[Pair]]:
    """Returns counts of the fetch and of the pictures, and the pairs that passed."""
    num_images = fetch.num_images
    tell(f"{plural(num_images, 'image')} to fetch")
    if not num_images:
        return Counts(), Counts(), iter(())
    num_taken = fetch_images(
        fetch, request.download_options(), larger_than_px=thresholds.picture.larger_than_px,
        earlier=request.images_from,
    )  # fmt: skip
    if num_taken is not None:
        tell(f"{plural(num_taken, 'image')} taken from {request.images_from}")
    units, fetched = picture_units(fetch, larger_than_px=thresholds.picture.larger_than_px)
    folder = request.out / WORK_NAME / PICTURES_NAME
    state = request.judges_state()
    job = PictureJob(
        str(folder), thresholds.picture, request.judge_files() if state else None, state, request.looks_for_porn,
        request.max_pixels,
    )  # fmt: skip
    run_units(job, units, choice, what="looking at pictures", as_json=request.json)
    return fetched, read_counts(folder, len(units)), map(pair_from_json, read_rows(folder, len(units)))


def dry_run(request: CollectRequest) -> tuple[list[PageUnit], int]:
    """Returns the units of a run and the bytes of those on this machine; nothing is written."""
    request.check()
    HeldOut(request.held_out)
    units = request.units()
    _check_folder(request.out)
    sizes = (Path(unit.root, name).stat().st_size for unit in units for name in unit.names if "://" not in name)
    return units, sum(sizes)


def _notes(request: CollectRequest) -> tuple[str, ...]:
    off = [
        (OFF_NSFW, not request.nsfw),
        (OFF_NUDENET, request.nsfw and not request.looks_for_porn),
        (OFF_PICTURES, request.picture_judge is None),
        (OFF_PAIRS, request.pair_judge is None),
        (OFF_EVALUATION, not request.held_out and not request.held_out_images),
    ]
    return tuple(note for note, is_off in off if is_off)


def _check_folder(out: Path) -> None:
    if out.is_dir() and not (out / WORK_NAME).is_dir() and any(path.name != ".lock" for path in out.iterdir()):
        raise ValueError(f"{out}: is not empty and holds no collection; name a new folder")


def _check_state(out: Path, state: str) -> bool:
    """Whether the collection is from when racy pictures stayed by default. Raises ValueError for one of other pages."""
    path, new = out / WORK_NAME / STATE_NAME, {"format": FORMAT, "version": VERSION, "state": state, "drops_racy": True}
    try:
        saved, _ = read_summed_json(path)
    except (FileNotFoundError, DamagedError) as error:
        if isinstance(error, DamagedError):  # parts and journal identify their content themselves
            log.warning("%s; it is made anew", error)
        write_summed_json(path, new)
        saved = new
    if saved.get("state") != state:
        raise ValueError(
            f"{out}: holds a collection of other pages (or of these before they changed), or with other thresholds of "
            f"page, language, image, text or size; name a new folder, and --images-from {out} takes its images along"
        )
    return not saved.get("drops_racy", False)
