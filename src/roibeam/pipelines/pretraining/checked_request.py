"""Checks of a request, or of several stages, before torch is imported.

Options, names, numbers, `--set`, files and stores are checked. Faults of the last stage are reported before the first
one trains. Weights, and all that depends on the data, such as the width of features, are checked later: nothing is
refused here that could fit them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.weights.sources import check_weight_file
from roibeam.features.store import FeatureStore
from roibeam.messages import check_lists, name_hint
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.common.compute import check_device, is_main_process
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles, read_json_object
from roibeam.pipelines.common.console.overrides import apply_overrides, refuse_two_values
from roibeam.pipelines.data.captions.caption_files import given_file, is_tsv
from roibeam.pipelines.data.captions.captioned_store import OWN_CAPTIONS, GivenStores, GivenValidation
from roibeam.pipelines.data.captions.task_texts import TaskTexts
from roibeam.pipelines.data.compatibility import ALL, checked_one_in
from roibeam.pipelines.data.datasets.text_sets import check_has_text
from roibeam.pipelines.data.vocabulary import check_background
from roibeam.pipelines.pretraining.recipes.named_systems import (
    DEFAULT_SIZE,
    NAMED_SYSTEMS,
    NamedSystem,
    check_kinds,
    check_search,
    check_text_alone,
    model_size,
    wrong_start,
)
from roibeam.pipelines.pretraining.recipes.published import recipe_named, stages_before
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedEncoder, RequestedModel
from roibeam.pipelines.pretraining.requested_settings import (
    OF_TRAIN,
    chosen_system,
    default_sections,
    encoder_of,
    model_overrides,
    recipe_of,
    sections_of_encoder,
    system_of_folder,
    train_config_of,
    with_masking,
)
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions, chosen_encoder
from roibeam.pipelines.training.model_files.model_folder import (
    CONFIG,
    bert_files,
    check_model_files,
    check_tokenizer_file,
    found_model,
)
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.run_folder.files import STAGES_NAME
from roibeam.pipelines.training.run_folder.folder import check_run_folder
from roibeam.pipelines.training.train_config import OPTIONS

NO_BERT = "none"  # in place of one
_OPTIONS_OF_SETTINGS = {**OPTIONS, "data.batch_size": "batch_size"}


def check_settings(
    request: PretrainRequest, recipe: Recipe | None, sizes: DetectorConfig | None, *, goes_on: bool
) -> None:
    """Checks numbers and settings, except those that only data or a start can decide.

    Args:
        sizes: of the encoder that an end-to-end run starts from; None without one, or if it comes with a model.
        goes_on: from the model of the stage before, whose sizes are not known yet.
    """
    system, named = NAMED_SYSTEMS.get(chosen_system(request)), NamedFiles()
    if system is None:
        return  # reported elsewhere
    request = named.look(lambda: with_masking(request, recipe, system)) or request
    named.look(lambda: refuse_two_values(request.training, _OPTIONS_OF_SETTINGS, request.training.settings))
    named.look(lambda: check_device(train_config_of(request, recipe)(1).device))
    named.look(lambda: _check_sections(request, recipe, system, None if goes_on else sizes))
    named.look(lambda: _check_model_fields(request, recipe, system, goes_on=goes_on))
    named.check()


def _check_sections(
    request: PretrainRequest, recipe: Recipe | None, system: NamedSystem, sizes: DetectorConfig | None
) -> None:
    """Checks the sections of settings other than model and train."""
    sections, elsewhere = default_sections(request, recipe, system.sampling), ["model"]
    if request.end_to_end:
        known = sizes or DetectorConfig()
        sections |= sections_of_encoder(request.encoder, known, EncoderOptions(), EndToEndChoices(), recipe)
        if sizes is None:
            del sections["detector"]
            elsewhere.append("detector")
    others = [each for each in request.training.settings if not each.startswith(OF_TRAIN)]
    chosen = apply_overrides(sections, others, elsewhere=elsewhere)
    if request.end_to_end:
        chosen["encoder"].check_rates(train_config_of(request, recipe)(1).parameter_groups)
        if getattr(chosen["sampling"], "box_numbers", False):
            raise ValueError("--end-to-end: features of photos have no box numbers; set sampling.box_numbers to false")
    if request.data.store:
        _check_objects(request, system, chosen)
        check_search(chosen["data"], has_validation=request.data.validation_captions is not None)
    elif request.data.text_corpus and recipe is None:  # a recipe needs a store, reported elsewhere
        check_text_alone(system, chosen["data"], chosen["sampling"])


def _check_objects(request: PretrainRequest, system: NamedSystem, chosen: Mapping[str, Any]) -> None:
    """Raises ValueError if the model reads region classes and no file has them, or the other way."""
    reads_classes = system.reads_objects and chosen["sampling"].told_classes
    if reads_classes and chosen["data"].validation_retrieval:
        raise ValueError("data.validation_retrieval: a search does not read classes of regions; leave it at 0")
    if request.data.objects and not system.reads_objects:
        raise ValueError(f"--objects: {system.title} reads no classes and outlines of regions; leave it out")
    if request.data.objects and not reads_classes and not request.end_to_end:
        raise ValueError("--objects: nothing reads it; set sampling.told_classes=true, or leave it out")
    if reads_classes and not request.data.objects:
        raise ValueError(
            "sampling.told_classes: the classes of regions are read from the file that their boxes are from: name it "
            "with --objects (COCO instances .json, or VCR's folder vcr1images)"
        )


def _check_model_fields(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem, *, goes_on: bool) -> None:
    overrides, known = model_overrides(request.training.settings), system.fields.own_fields()
    for name, value in overrides.items():
        if name not in known:
            raise ValueError(f"--set 'model.{name}={value}': model has no field {name!r}; {name_hint(name, known)}")
    base = None if goes_on else _base_fields(request, recipe, system)
    try:
        system.fields.check_values(overrides)
        if base is not None:
            chosen = _with_data({**base, **overrides}, overrides, system)
            system.fields(**chosen)
            # A recipe or a model to start from that needs --end-to-end is refused elsewhere.
            is_on_stored = (recipe is None or not recipe.end_to_end) and not request.end_to_end
            is_new = request.model.from_run is None and bool(request.data.store)
            if is_on_stored and is_new and chosen.get("masked_appearance") == "pixels":
                raise ValueError(
                    "masked_appearance 'pixels' reads the features of masked regions, and stored ones were measured on "
                    "whole photos: they hold the answer; add --end-to-end, or choose another"
                )
    except ValueError as error:
        raise ValueError(f"model settings {overrides}: {error}") from None


def _base_fields(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem) -> Mapping[str, Any] | None:
    """Fields of a new model, or of the model to start from; None if its sizes are not known, or its name is unknown."""
    spec = request.model
    if spec.from_run is not None:
        try:
            found = found_model(spec.from_run)
        except ValueError:  # reported elsewhere
            return None
        if found is None or system_of_folder(found.source) is None:
            return None
        config = read_json_object(found.source / CONFIG)
        config = config.get("model", config)  # end to end, the encoder's is beside it
        if config.get("architectures") != [system.architecture]:
            return None
        return {name: value for name, value in config.items() if name in system.fields.own_fields()}
    if spec.from_bert not in (None, NO_BERT):
        return None
    if recipe is None:
        size = system.sizes.get(spec.model or DEFAULT_SIZE)
        return None if size is None else size.fields
    if recipe.start and not spec.toy and spec.from_bert is None:
        return None
    return (recipe.toy_build if spec.toy else recipe.build).fields


def _with_data(fields: Mapping[str, Any], overrides: Mapping[str, Any], system: NamedSystem) -> dict[str, Any]:
    """The fields with feature predictions as wide as the data's features."""
    objective, given = system.class_objective, "region_feature_size"
    if objective is None or fields.get(objective.field) not in objective.feature_losses:
        return dict(fields)
    if objective.labels in overrides and given not in overrides:
        return {**fields, given: overrides[objective.labels]}
    if objective.labels in overrides:
        return dict(fields)
    width = fields.get(given, getattr(system.fields, given))
    return {**fields, objective.labels: width}


_TOKENIZER_OF_CAPTIONS = "captions"
_ENCODER_FILES = ("photos", "weights", "labels", "labels_photos", "labels_vocab", "judge_labels", "judge_photos")


def check_request(request: PretrainRequest, *, goes_on: bool = False) -> None:
    """Raises ValueError for everything that is missing or does not fit, named as the command's options, with the
    remedy.

    Args:
        goes_on: as a later stage; its start is filled in when its turn comes.
    """
    data, spec, named = request.data, request.model, NamedFiles()
    recipe = recipe_of(request)
    has_own_encoder = request.end_to_end and spec.from_run is None and not goes_on
    sizes = named.look(lambda: chosen_encoder(encoder_of(request, recipe)).config) if has_own_encoder else None
    for check in (
        lambda: _check_stores(request),
        lambda: _check_model(request, recipe),
        lambda: check_settings(request, recipe, sizes, goes_on=goes_on),
        lambda: None if goes_on else _check_start(spec, recipe),
        lambda: None if goes_on else _check_run_folder(request),
        lambda: _check_labels(request.encoder) if request.end_to_end else _refuse_encoder(request, recipe),
        lambda: _check_texts(request, recipe),
        lambda: _check_kinds(request),
        lambda: None if goes_on else _check_system_of_start(request),
    ):
        named.look(check)
    if data.drop_held_out and not data.held_out:
        named.refuse("--drop-held-out: name what is held out, with --held-out")
    _need_files(request, named)
    named.check()
    for path in data.text_corpus:
        named.look(lambda path=path: check_has_text(str(path)))  # type: ignore[misc]
    named.check()
    if not data.store:
        return
    texts = TaskTexts(data.task_text) if data.task_text else None
    named.look(lambda: checked_one_in(data.checksums))
    rules = {"caption_column": data.caption_column}
    named.look(lambda: GivenStores(data.store, data.captions, data.store_weight, texts=texts, **rules))
    named.look(lambda: GivenValidation(data.validation_captions, data.validation_store, **rules))
    if data.caption_column and not any(map(is_tsv, (*data.captions, data.validation_captions or ""))):
        named.refuse("--caption-column: none of --captions and --validation-captions is a caption .tsv")
    for file in (*data.captions, data.validation_captions):
        if file not in (None, OWN_CAPTIONS):
            named.look(lambda file=file: given_file(file, **rules).check())  # type: ignore[misc]
    for store in (each for each in (*data.store, data.validation_store) if each and "://" not in each):
        named.look(lambda store=store: FeatureStore(store).close())  # type: ignore[misc]
    if not goes_on:
        named.look(lambda: _check_store_of_start(request))
    named.check()


def _check_model(request: PretrainRequest, recipe: Recipe | None) -> None:
    spec = request.model
    if recipe is not None and (spec.system or spec.model):
        raise ValueError(f"--recipe {spec.recipe} sets system and model; leave --system and --model out")
    if spec.toy and recipe is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    if recipe is None:
        model_size(chosen_system(request), spec.model or DEFAULT_SIZE)


def _refuse_encoder(request: PretrainRequest, recipe: Recipe | None) -> None:
    """Raises ValueError if a run on stored features has options that only an end-to-end run has."""
    if recipe is not None and recipe.end_to_end and not recipe.on_stored:
        raise ValueError(
            f"--recipe {request.model.recipe} trains through the detector: add --end-to-end, see docs/train.md"
        )
    spec = request.encoder
    given = [field.name for field in fields(spec) if getattr(spec, field.name)]
    if given:
        raise ValueError(f"{_option(given[0])} is for --end-to-end; stored features need no photos and no encoder")


def _need_files(request: PretrainRequest, named: NamedFiles) -> None:
    data, model, encoder = request.data, request.model, request.encoder
    for store in (*data.store, data.validation_store):
        named.need("--validation-store" if store is data.validation_store else "--store", store, FOLDER)
    for file in data.captions:
        named.need("--captions", None if file == OWN_CAPTIONS else file, FILE)
    for path in data.task_text:
        named.need("--task-text", path, FILE)
    for path in data.text_corpus:
        named.need("--text-corpus", path, FILE)
    for place in data.objects:
        named.need("--objects", place)
    named.need("--validation-captions", data.validation_captions, FILE)
    for rule in data.held_out:
        named.need("--held-out", rule.partition("=")[2] or None)
    named.need("--tokenizer", None if model.tokenizer == _TOKENIZER_OF_CAPTIONS else model.tokenizer)
    named.need("--from-run", model.from_run)
    named.need("--from-bert", None if model.from_bert == NO_BERT else model.from_bert)
    for name in _ENCODER_FILES:
        named.need(_option(name), getattr(encoder, name))
    named.look(lambda: check_weight_file(encoder.weights))
    named.need_output_folder(request.out)


def _check_stores(request: PretrainRequest) -> None:
    """Raises ValueError if options that need a store have none, or there is nothing to learn from."""
    data, model = request.data, request.model
    if data.store:
        return
    of_stores = {
        "--captions": data.captions, "--store-weight": data.store_weight, "--task-text": data.task_text,
        "--validation-captions": data.validation_captions, "--validation-store": data.validation_store,
        "--held-out": data.held_out, "--numbers-of": data.numbers_of, "--drop-held-out": data.drop_held_out,
        "--end-to-end": request.end_to_end, "--cache-dir": data.cache_dir, "--cache-gb": data.cache_gb,
        "--objects": data.objects, "--recipe": model.recipe, "--min-match": data.min_match is not None,
        "--num-classes": data.num_classes, "--checksums": data.checksums != ALL,
    }  # fmt: skip
    unread = [option for option, value in of_stores.items() if value]
    if unread or not data.text_corpus:
        what = f" that {unread[0]} is for" if unread else "; for text without images, --text-corpus"
        raise ValueError(f"--store: name the store that roibeam extract wrote{what}")


def _check_start(spec: RequestedModel, recipe: Recipe | None) -> None:
    check_background(spec.background)
    if spec.background is not None and spec.from_run is None:
        raise ValueError(f"--background {spec.background}: of a model to start from, name it with --from-run")
    if spec.from_run is not None and spec.from_bert is not None:
        raise ValueError("--from-run and --from-bert: a model starts from one of them")
    _check_files_of_start(spec)
    if recipe is not None and recipe.after and spec.from_run is None:
        raise ValueError(f"--recipe {spec.recipe} goes on from {recipe.after}: name its run with --from-run")


def _check_files_of_start(spec: RequestedModel) -> None:
    """Raises ValueError if a folder or file exists and is no model, no BERT or no tokenizer."""
    start, bert, tokenizer = spec.from_run, spec.from_bert, spec.tokenizer
    if start is not None:
        check_model_files(start)
    if bert is not None and bert != NO_BERT and Path(bert).expanduser().exists():
        bert_files(bert)
    if tokenizer != _TOKENIZER_OF_CAPTIONS:
        check_tokenizer_file(tokenizer)


def _check_run_folder(request: PretrainRequest) -> None:
    """Raises ValueError if other files are in the way of the run. Other processes may check after it has started."""
    resume = request.training.resume_choice
    if is_main_process() and not (request.out / STAGES_NAME).is_file():
        check_run_folder(request.out, resume=resume)


def _check_labels(spec: RequestedEncoder) -> None:
    for option, needed in (
        ("labels_photos", spec.labels),
        ("judge_photos", spec.judge_labels),
        ("max_judge_images", spec.judge_labels),
        ("labels_vocab", spec.labels or spec.judge_labels),
    ):
        if getattr(spec, option) is not None and needed is None:
            name = "--labels" if option.startswith("labels") else "--judge-labels"
            raise ValueError(f"{_option(option)} is for {name}; name the labels, or leave it out")


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _check_texts(request: PretrainRequest, recipe: Recipe | None) -> None:
    name = request.model.recipe
    if recipe is not None and recipe.text_corpus and not request.data.text_corpus:
        raise ValueError(f"--recipe {name} mixes in text without images: name the files with --text-corpus")
    if recipe is not None and recipe.task_text and not request.data.task_text:
        raise ValueError(f"--recipe {name} reads a task's own text: name its files with --task-text")


def _check_kinds(request: PretrainRequest) -> None:
    data, system = request.data, NAMED_SYSTEMS.get(chosen_system(request))
    if system is None:
        return  # reported elsewhere
    check_kinds(
        system,
        num_stores=len(data.store),
        has_text_corpus=bool(data.text_corpus),
        has_task_texts=bool(data.task_text),
        is_end_to_end=request.end_to_end,
        has_validation=data.validation_captions is not None,
    )


def _check_system_of_start(request: PretrainRequest) -> None:
    """Raises ValueError for a model of another system. Weights are not read."""
    start, name = request.model.from_run, chosen_system(request)
    found = None if start is None or not Path(start).expanduser().exists() else found_model(start)
    if found is None or name not in NAMED_SYSTEMS:
        return
    held = system_of_folder(found.source)
    if held not in (None, name):
        raise wrong_start(found.source, NAMED_SYSTEMS[held].architecture, NAMED_SYSTEMS[name])


def _check_store_of_start(request: PretrainRequest) -> None:
    """Raises ValueError if the first store has other features than the model to start from learned."""
    start, store = request.model.from_run, request.data.store[0]
    found = None if start is None else found_model(start)
    if found is not None and "://" not in store:
        with FeatureStore(store) as opened:
            check_feature_space(found, opened, reads_classes=True)


@dataclass(frozen=True)
class RequestedStage:
    """Attributes:
    name: for people.
    request: the request; `out`, and from the second stage on the start, are filled in when its turn comes.
    options: one text for each option that decides the result; a finished stage is skipped while these are the same.
    """

    name: str
    request: PretrainRequest
    options: Sequence[str]

    def __post_init__(self) -> None:
        check_lists(self, "options")

    def title(self, number: int, *, of: int | None = None) -> str:
        """The stage's number and name, for people; `of` is the number of stages."""
        name, whole = f"stage {number}", "" if of is None else f" of {of}"
        return f"{name}{whole}" if self.name == name else f"{name}{whole} ({self.name})"


def check_stages(out: Path, stages: Sequence[RequestedStage]) -> None:
    """Raises ValueError with all faults of the stages, named as the command's options.

    A folder that holds a run in stages passes: inputs of finished stages may be gone. `run_stages` checks the others.
    """
    if (out / STAGES_NAME).is_file():
        return
    named = NamedFiles()
    named.need_output_folder(out)
    for number, (stage, request) in enumerate(zip(stages, requests_of(stages), strict=True), start=1):
        named.look(partial(_check, number, stage, request))
    named.check()


def requests_of(stages: Sequence[RequestedStage]) -> list[PretrainRequest]:
    """The stages' requests. One that names no system gets that of the stage before, whose weights it continues."""
    found: list[PretrainRequest] = []
    for stage in stages:
        request = stage.request
        if found and request.model.system is None and request.model.recipe is None:
            request = replace(request, model=replace(request.model, system=chosen_system(found[-1])))
        found.append(request)
    return found


def _check(number: int, stage: RequestedStage, request: PretrainRequest) -> None:
    try:
        check_request(request, goes_on=number > 1)
    except (ValueError, OSError) as error:
        raise ValueError(f"{stage.title(number)}: {error}") from None


# Options that a later stage inherits with the weights of the one before.
_COMES_WITH_THE_WEIGHTS = ("from_bert", "tokenizer", "background", "detector", "weights", "conventions")


def recipes_in_row(spec: RequestedModel, num_stages: int) -> list[str]:
    """The recipes of the stages, in order; empty if `spec` names no recipe that continues another one. ValueError for
    one stage, or another number of stages described one by one (0 for none) than the recipe has."""
    recipe, chain = spec.recipe, list[str]()
    if recipe is not None and spec.from_run is None and recipe_named(recipe).after:
        chain = [*stages_before(recipe), recipe]
    if chain and num_stages and num_stages != len(chain):
        raise ValueError(
            f"--recipe {recipe} has {len(chain)} stages ({', '.join(chain)}), --stage is given {num_stages}x"
        )
    if num_stages == 1:
        raise ValueError("--stage: one stage is no more than the command without it; give it once for each of several")
    return chain


def not_passed_on(number: int, recipe: str | None) -> tuple[str, ...]:
    """Names of options that stage `number` (from 1), of this recipe of a chain, does not inherit from those given for
    all."""
    names = () if number == 1 else _COMES_WITH_THE_WEIGHTS
    if recipe is None:
        return names
    return (*names, "recipe", "captions" if recipe_named(recipe).task_text else "task_text")


def check_recipe_of_stage(recipe: str, number: int, where: str) -> None:
    """Raises ValueError if the first stage continues a recipe that no stage before it has run."""
    after = recipe_named(recipe).after
    if number == 1 and after:
        raise ValueError(f"{where}: {recipe} goes on from {after}; let that be the stage before")
