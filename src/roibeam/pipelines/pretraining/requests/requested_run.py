"""A request becomes a run: `roibeam pretrain` without the command line.

request -> recipe, system, settings, start -> stores and captions, opened -> `pretrain` -> result
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from roibeam.model.common.bert import BertSizes
from roibeam.pipelines.extract.request import MIN_MATCH
from roibeam.pipelines.inputs.captioned.captioned_store import LeakGuard
from roibeam.pipelines.inputs.captioned.given_stores import GivenStores, GivenValidation, held_out_hints
from roibeam.pipelines.inputs.captioned.task_texts import TaskTexts
from roibeam.pipelines.model_files.bert_start import read_bert
from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd
from roibeam.pipelines.pretraining.pretrain_run import pretrain
from roibeam.pipelines.pretraining.recipes.published import recipe_named
from roibeam.pipelines.pretraining.recipes.recipe import TOY_ENCODER, Recipe
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedModel
from roibeam.pipelines.pretraining.requests.requested_encoder import (
    encoder_sections,
    refuse_encoder,
    requested_encoder,
)
from roibeam.pipelines.pretraining.requests.requested_settings import (
    changed_sections,
    default_sections,
    model_overrides,
    train_config_of,
)
from roibeam.pipelines.pretraining.run_frame import PretrainResult, RunSettings
from roibeam.pipelines.pretraining.start import ModelChoice
from roibeam.pipelines.pretraining.systems import System, system_named
from roibeam.pipelines.pretraining.text_run import pretrain_on_text
from roibeam.pipelines.sources.held_out import HeldOut
from roibeam.pipelines.training.loop import is_main_process
from roibeam.pipelines.training.run_folder.curves import write_curves

NO_BERT = "none"


def run_pretraining(request: PretrainRequest) -> PretrainResult:
    """Runs what is asked for, and writes the run folder.

    A recipe that goes on from another one needs `from_run`; `run_stages` of requested_stages.py runs both.

    Returns:
        As of `pretrain`; its notes also say what was left out of the files that were named.
    Raises:
        ValueError: whatever does not fit, named as the command's option, saying what to do.
        OSError: when a file cannot be read.
    """
    _check_stores(request)
    asked, training = request.model, request.training
    recipe = None if asked.recipe is None else recipe_named(asked.recipe)
    system, build = _system(asked, recipe)
    _check_start(asked, recipe)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    sections = default_sections(request, recipe, system)
    start = None if asked.from_run is None else load_model_or_joint(asked.from_run)
    request = _with_toy_encoder(request, start)
    if request.end_to_end:
        sections |= encoder_sections(request.encoder, system.whole_image, start)
    else:
        _refuse_encoder(request, recipe, start)
    sections = changed_sections(sections, training.settings)
    train_config = train_config_of(request, recipe)
    train_config(1)  # what is wrong with --set is said before anything is read
    overrides = model_overrides(training.settings)
    _check_texts(request, recipe)
    if recipe is not None and asked.from_run is not None:
        overrides = {**recipe.changes, **overrides}
    from_bert = _bert(asked, recipe)
    encoder = requested_encoder(request.encoder, sections, start) if request.end_to_end else None
    rules = _held_out(request)
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
        background_first=asked.background_first,
    )
    if request.data.stores:
        result = _pretrain_on_stores(request, settings, choice, rules, encoder)
    else:
        result = pretrain_on_text(request.data.text_corpus, request.out, settings, choice)
    if is_main_process():
        write_curves(request.out)
    return result


def _pretrain_on_stores(
    request: PretrainRequest, settings: RunSettings, choice: ModelChoice, rules: HeldOut, encoder: EndToEnd | None
) -> PretrainResult:
    data = request.data
    texts = TaskTexts(data.task_texts, id_rule=data.id_rule) if data.task_texts else None
    given = GivenStores(data.stores, data.captions, data.weights, texts=texts, id_rule=data.id_rule)
    validated = GivenValidation(data.validation, data.validation_store, id_rule=data.id_rule)
    min_match = MIN_MATCH if data.min_match is None else data.min_match
    with (
        given.opened(data.stage_to, data.stage_gb, images_of=data.images_of, min_match=min_match) as sources,
        validated.opened(sources[0], images_of=data.images_of, min_match=min_match) as asked,
    ):
        notes = [] if data.held_out else held_out_hints(sources)
        result = pretrain(
            sources,
            request.out,
            settings,
            choice,
            text_files=data.text_corpus,
            guard=LeakGuard(rules, data.leave_out_held_out) if data.held_out else None,
            end_to_end=encoder,
            validation=asked,
            num_classes=data.num_classes,
        )
    for one, of_file in zip(result.sources, given.notes(), strict=True):
        notes += one.told(of_file)
    return replace(result, notes=[*notes, *validated.notes(), *result.notes])


def _check_stores(request: PretrainRequest) -> None:
    """Raises ValueError where no store is named, but something that is for one, or nothing to learn from."""
    data, model = request.data, request.model
    if data.stores:
        return
    of_stores = {
        "--captions": data.captions, "--weight": data.weights, "--task-text": data.task_texts,
        "--validation": data.validation, "--validation-store": data.validation_store, "--held-out": data.held_out,
        "--images-of": data.images_of, "--leave-out-held-out": data.leave_out_held_out,
        "--end-to-end": request.end_to_end, "--stage-to": data.stage_to, "--stage-gb": data.stage_gb,
        "--recipe": model.recipe, "--min-match": data.min_match is not None,
        "--num-classes": data.num_classes,
    }  # fmt: skip
    unread = [option for option, value in of_stores.items() if value]
    if unread or not data.text_corpus:
        what = f" that {unread[0]} is for" if unread else "; for text without images, --text-corpus"
        raise ValueError(f"--store: name the store that roibeam extract wrote{what}")


def _system(asked: RequestedModel, recipe: Recipe | None) -> tuple[System, Callable[..., BertSizes]]:
    """The system, and what makes its model's configuration."""
    if recipe is not None and (asked.system or asked.size):
        raise ValueError(f"--recipe {asked.recipe} says which system and model; leave --system and --model out")
    if asked.toy and recipe is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    system = system_named(recipe.system if recipe else asked.system or "vlbert")
    if recipe is not None:
        return system, recipe.toy_build if asked.toy else recipe.build
    size = asked.size or "small"
    if size not in system.sizes:
        raise ValueError(f"--model {asked.size!r}: choose one of {', '.join(system.sizes)}")
    return system, system.sizes[size]


def _check_start(asked: RequestedModel, recipe: Recipe | None) -> None:
    if asked.background_first is not None and asked.from_run is None:
        raise ValueError("--background-first/--background-last: of a model to start from, name it with --from-run")
    if asked.from_run is not None and asked.from_bert is not None:
        raise ValueError("--from-run and --from-bert: a model starts from one of them")
    if recipe is not None and recipe.after and asked.from_run is None:
        raise ValueError(f"--recipe {asked.recipe} goes on from {recipe.after}: name its run with --from-run")


def _with_toy_encoder(request: PretrainRequest, start: ModelCheckpoint | None) -> PretrainRequest:
    """The toy of a recipe has a toy encoder, unless another is named or comes with the run that it goes on from."""
    if not (request.model.toy and request.end_to_end) or isinstance(start, JointCheckpoint):
        return request
    return replace(request, encoder=replace(request.encoder, detector=request.encoder.detector or TOY_ENCODER))


def _refuse_encoder(request: PretrainRequest, recipe: Recipe | None, start: ModelCheckpoint | None) -> None:
    """Raises ValueError where a run on stored features is asked for, and something that only one end to end has."""
    if recipe is not None and recipe.end_to_end:
        raise ValueError(
            f"--recipe {request.model.recipe} trains through the detector: add --end-to-end, see docs/end-to-end.md"
        )
    refuse_encoder(request.encoder)
    if isinstance(start, JointCheckpoint):
        raise ValueError(
            f"--from-run {request.model.from_run} was trained end to end: its encoder goes on with it, --end-to-end"
        )


def _check_texts(request: PretrainRequest, recipe: Recipe | None) -> None:
    name = request.model.recipe
    if recipe is not None and recipe.text_corpus and not request.data.text_corpus:
        raise ValueError(f"--recipe {name} mixes in text without images: name the files with --text-corpus")
    if recipe is not None and recipe.task_text and not request.data.task_texts:
        raise ValueError(f"--recipe {name} reads a task's own text: name its files with --task-text")


def _bert(asked: RequestedModel, recipe: Recipe | None) -> str | None:
    """Where the BERT is that the model starts from; None for new weights, or for those of a run."""
    if asked.from_bert is not None:
        return None if asked.from_bert == NO_BERT else asked.from_bert
    published = recipe is not None and not asked.toy and asked.from_run is None and recipe.start
    return f"hf:google-bert/{published}" if published else None


def _held_out(request: PretrainRequest) -> HeldOut:
    data = request.data
    if data.leave_out_held_out and not data.held_out:
        raise ValueError("--leave-out-held-out: name what is held out, with --held-out")
    return HeldOut(data.held_out)
