"""Several requests in a row: each goes on from the weights that the one before left, in one run folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.common.overrides import apply_overrides
from roibeam.pipelines.data.captioned.captioned_store import check_pair_agrees
from roibeam.pipelines.data.captioned.given_stores import OWN_CAPTIONS
from roibeam.pipelines.data.captioned.task_corpus import check_given_boxes
from roibeam.pipelines.pretraining.requests.checked_stages import RequestedStage, requests_of
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedData
from roibeam.pipelines.pretraining.requests.requested_run import run_pretraining
from roibeam.pipelines.pretraining.requests.requested_settings import recipe_of
from roibeam.pipelines.pretraining.run_frame import PretrainResult
from roibeam.pipelines.pretraining.samples.data_config import DataConfig
from roibeam.pipelines.pretraining.systems import system_named
from roibeam.pipelines.training.run_folder.stages import StagedRun
from roibeam.pipelines.training.run_folder.stages_page import write_stages_page

logger = logging.getLogger(__name__)


def run_stages(
    out: Path,
    stages: Sequence[RequestedStage],
    *,
    resume: bool | None = None,
    tell: Callable[[PretrainRequest, PretrainResult], None] = lambda request, result: None,
) -> None:
    """Runs the stages into folders of `out`, each from the weights of the one before.

    Args:
        resume: of every stage, in place of its request's.
        tell: is called with each stage that ran, as it was run, and its result.
    Raises:
        ValueError: what a later stage would stop at, as far as it is known, before the first has trained; what
            `StagedRun` and `run_pretraining` raise.
    """
    run = StagedRun(out, [stage.options for stage in stages])
    done = {number for number in range(1, len(stages) + 1) if resume is not False and run.is_done(number)}
    _check_ahead(stages, done, run.folder)
    if is_main_process():
        run.save()
    for number, stage in enumerate(stages, start=1):
        folder = run.folder(number)
        if number in done:
            logger.info("%s is done: %s", stage.told(number, of=len(stages)), folder)
            continue
        logger.info("%s", stage.told(number, of=len(stages)))
        before = None if number == 1 else str(run.folder(number - 1))
        try:
            request = _placed(stage.request, folder, before, resume)
            tell(request, run_pretraining(request))
        finally:
            if is_main_process():
                write_stages_page(out, [each.name for each in stages])
        if is_main_process():
            run.mark_done(number)


def _placed(request: PretrainRequest, folder: Path, before: str | None, resume: bool | None) -> PretrainRequest:
    """The request of a stage in its folder, from the run before."""
    model = request.model if before is None else replace(request.model, from_run=before)
    return replace(request, out=folder, model=model, training=replace(request.training, resume=resume))


def _check_ahead(stages: Sequence[RequestedStage], done: Collection[int], folders: Callable[[int], Path]) -> None:
    """Says before the first stage has trained for days what a later one would stop at: settings that are none, files or
    local stores that are not there, stores with features of different spaces or without the boxes that words name.

    Args:
        done: stages whose data is read no more, and may be gone.
        folders: number of a stage -> its folder, in which it may have begun.
    Raises:
        ValueError: naming the stage.
    """
    with ExitStack() as opened:
        first: FeatureStore | None = None
        requests = requests_of(stages)
        for number, stage in enumerate(stages, start=1):
            if number in done:
                continue
            request = requests[number - 1]
            data = request.data
            try:
                aligns_words = _check_settings(replace(request, out=folders(number)))
                _check_files(data)
                for path in (each for each in (*data.stores, data.validation_store) if each and "://" not in each):
                    store = opened.enter_context(FeatureStore(path))
                    if first is not None:
                        check_pair_agrees(first, store, in_one_run=False)
                    if aligns_words:
                        check_given_boxes(store)
                    first = first or store
            except (ValueError, OSError) as error:
                raise ValueError(f"{stage.told(number)}: {error}") from None


def _check_settings(request: PretrainRequest) -> bool:
    """Whether --set makes words be aligned with the regions that they name; ValueError for a setting that is none.

    `check_request` looks at the others, before this or when the stage begins.
    """
    recipe = recipe_of(request)
    system = system_named(recipe.system if recipe else chosen_system(request))
    sections = {"data": DataConfig(), "sampling": recipe.sampling if recipe else system.sampling()}
    settings = [each for each in request.training.settings if each.partition(".")[0].strip() in sections]
    return system.aligns_words(apply_overrides(sections, settings)["sampling"])


def _check_files(data: RequestedData) -> None:
    for option, files in (
        ("--captions", data.captions),
        ("--task-text", data.task_texts),
        ("--text-corpus", data.text_corpus),
        ("--validation-captions", () if data.validation is None else (data.validation,)),
    ):
        for file in map(str, files):
            if file != OWN_CAPTIONS and not os.path.isfile(file):
                raise ValueError(f"{option}: no file here: {file!r}")
