"""A request becomes a run: `roibeam pretrain` without the command line.

request -> recipe, system, settings, start -> stores and captions, opened -> `pretrain` -> result
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from roibeam.features.reading.unfinished_stores import unfinished_lines
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.data.captioned.captioned_store import LeakGuard
from roibeam.pipelines.data.captioned.given_stores import GivenStores, GivenValidation
from roibeam.pipelines.data.captioned.task_texts import TaskTexts
from roibeam.pipelines.data.captions.least_match import MIN_MATCH
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd
from roibeam.pipelines.pretraining.pretrain_run import pretrain
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SIZE, model_size
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.requests.checked_request import check_request
from roibeam.pipelines.pretraining.requests.checked_settings import NO_BERT
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system
from roibeam.pipelines.pretraining.requests.encoder_sections import encoder_of
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedModel
from roibeam.pipelines.pretraining.requests.requested_encoder import (
    encoder_sections,
    requested_encoder,
)
from roibeam.pipelines.pretraining.requests.requested_settings import (
    APPEARANCE,
    begun_masking,
    changed_sections,
    default_sections,
    model_overrides,
    notes_of_begun,
    recipe_of,
    train_config_of,
    with_masking,
)
from roibeam.pipelines.pretraining.run_frame import PretrainResult, RunSettings
from roibeam.pipelines.pretraining.start import ModelChoice
from roibeam.pipelines.pretraining.systems import System, system_named
from roibeam.pipelines.pretraining.text_run import pretrain_on_text
from roibeam.pipelines.training.model_files.bert_start import read_bert
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint

logger = logging.getLogger(__name__)


def run_pretraining(request: PretrainRequest) -> PretrainResult:
    """Runs what is asked for, and writes the run folder.

    A recipe that goes on from another one needs `from_run`; `run_stages` of requested_stages.py runs both.

    Returns:
        As of `pretrain`.
    Raises:
        ValueError: whatever does not fit, named as the command's option, saying what to do.
        OSError: when a file cannot be read.
    """
    check_request(request)
    settings, choice, encoder = requested_parts(request)
    if not request.data.stores:
        return pretrain_on_text(request.data.text_corpus, request.out, settings, choice)
    return _pretrain_on_stores(request, settings, choice, HeldOut(request.data.held_out), encoder)


def requested_parts(request: PretrainRequest) -> tuple[RunSettings, ModelChoice, EndToEnd | None]:
    """How the run trains, which model, and end to end through which encoder: all but the data, which is not looked at.

    Raises:
        ValueError: as `run_pretraining`.
    """
    asked, training = request.model, request.training
    recipe = recipe_of(request)
    system, build = _system(request, recipe)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    sections = default_sections(request, recipe, system.sampling)
    start = None if asked.from_run is None else load_model_or_joint(asked.from_run)
    for note in () if start is None else start.changes:
        logger.warning("%s: %s", asked.from_run, note)
    if request.end_to_end and not isinstance(start, JointCheckpoint):
        request = replace(request, encoder=encoder_of(request, recipe))
    request = with_masking(request, recipe, system.named)
    for note in _notes_of_begun(request, recipe, system) if is_main_process() else ():
        logger.warning("%s", note)
    training = request.training
    if request.end_to_end:
        sections |= encoder_sections(request.encoder, system.whole_image, start, recipe)
    else:
        _refuse_joint_start(request, start)
    sections = changed_sections(sections, training.settings)
    train_config = train_config_of(request, recipe)
    train_config(1)  # what is wrong with --set is said before anything is read
    overrides = model_overrides(training.settings)
    if recipe is not None and asked.from_run is not None:
        overrides = {**recipe.changes, **overrides}
    from_bert = _bert(asked, recipe)
    encoder = requested_encoder(request.encoder, sections, start) if request.end_to_end else None
    settings = RunSettings(
        train_config,
        data=sections["data"],
        sampling=sections["sampling"],
        inspect_rows=training.inspect_batch,
        resume="auto" if training.resume is None else training.resume,
    )
    own_tokenizer = None if start is None or start.tokenizer is None else str(start.tokenizer)
    choice = ModelChoice(
        system=system,
        build_config=build,
        overrides=overrides,
        tokenizer_spec=asked.tokenizer or own_tokenizer or from_bert or "captions",
        bert=None if from_bert is None else read_bert(from_bert),
        start=start,
        background=asked.background,
        recipe=asked.recipe or "",
        features=None if recipe is None or asked.toy else recipe.features,
    )
    return settings, choice, encoder


def _pretrain_on_stores(
    request: PretrainRequest, settings: RunSettings, choice: ModelChoice, rules: HeldOut, encoder: EndToEnd | None
) -> PretrainResult:
    data = request.data
    texts = TaskTexts(data.task_texts) if data.task_texts else None
    given = GivenStores(
        data.stores, data.captions, data.weights, texts=texts, checksums=data.checksums,
        caption_column=data.caption_column,
    )  # fmt: skip
    validated = GivenValidation(data.validation, data.validation_store, caption_column=data.caption_column)
    min_match = MIN_MATCH if data.min_match is None else data.min_match
    with (
        given.opened(data.stage_to, data.stage_gb, images_of=data.images_of, min_match=min_match) as sources,
        validated.opened(sources[0], images_of=data.images_of, min_match=min_match) as asked,
    ):
        read = [each.store for each in (*sources, asked) if each is not None]
        for line in unfinished_lines(dict.fromkeys(read)) if is_main_process() else ():
            logger.warning("%s", line)
        return pretrain(
            sources,
            request.out,
            settings,
            choice,
            text_files=data.text_corpus,
            guard=LeakGuard(rules, data.leave_out_held_out) if data.held_out else None,
            end_to_end=encoder,
            validation=asked,
            num_classes=data.num_classes,
            objects=data.objects,
        )


def _system(request: PretrainRequest, recipe: Recipe | None) -> tuple[System, ModelFields]:
    """The system, and its model's configuration."""
    asked = request.model
    if recipe is not None:
        return system_named(recipe.system), recipe.toy_build if asked.toy else recipe.build
    name = chosen_system(request)
    return system_named(name), model_size(name, asked.size or DEFAULT_SIZE)


def _notes_of_begun(request: PretrainRequest, recipe: Recipe | None, system: System) -> list[str]:
    """Where the run in the folder goes on as it began: before its recipe's masking was kept end to end, or by another
    recipe of that name."""
    notes = notes_of_begun(request)
    begun = begun_masking(request.out).get(APPEARANCE) if request.end_to_end else None
    published = system.named.masking.get(recipe.masking) if recipe is not None else None
    if begun is None or published in (None, begun) or f"{APPEARANCE}={begun}" not in request.training.settings:
        return notes
    return [
        *notes,
        f"{request.out} goes on as it began, with {APPEARANCE}={begun}; {request.model.recipe} has {published}: for "
        f"that, begin a new run",
    ]


def _refuse_joint_start(request: PretrainRequest, start: ModelCheckpoint | None) -> None:
    """Raises ValueError where a run on stored features is asked for, and one end to end to go on from."""
    if isinstance(start, JointCheckpoint):
        raise ValueError(
            f"--from-run {request.model.from_run} was trained end to end: its encoder goes on with it, --end-to-end"
        )


def _bert(asked: RequestedModel, recipe: Recipe | None) -> str | None:
    """Where the BERT is that the model starts from; None for new weights, or for those of a run."""
    if asked.from_bert is not None:
        return None if asked.from_bert == NO_BERT else asked.from_bert
    published = recipe is not None and not asked.toy and asked.from_run is None and recipe.start
    return f"hf:google-bert/{published}" if published else None
