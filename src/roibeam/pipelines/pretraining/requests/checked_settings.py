"""A request's numbers and `--set` looked at before torch is imported.

What the data decide, such as the width of features, is not known yet: nothing is refused here that could fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.near_names import name_hint
from roibeam.pipelines.common.device_choice import check_device
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.common.files.named_files import NamedFiles
from roibeam.pipelines.common.overrides import apply_overrides, refuse_two_values
from roibeam.pipelines.pretraining.recipes.data_kinds import check_search, check_text_alone
from roibeam.pipelines.pretraining.recipes.named_systems import (
    DEFAULT_SIZE,
    NAMED_SYSTEMS,
    NamedSystem,
)
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system, system_of_folder
from roibeam.pipelines.pretraining.requests.encoder_sections import sections_of_encoder
from roibeam.pipelines.pretraining.requests.request import PretrainRequest
from roibeam.pipelines.pretraining.requests.requested_settings import (
    OF_TRAIN,
    default_sections,
    model_overrides,
    train_config_of,
    with_masking,
)
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions
from roibeam.pipelines.training.model_files.model_folder import CONFIG, found_model
from roibeam.pipelines.training.train_config import OPTIONS

NO_BERT = "none"  # in place of one
_OPTIONS = {**OPTIONS, "data.batch_size": "batch_size"}


def check_settings(
    request: PretrainRequest, recipe: Recipe | None, sizes: DetectorConfig | None, *, goes_on: bool
) -> None:
    """
    Args:
        sizes: of the encoder that a run end to end begins with; None where there is none, or it comes with a model.
        goes_on: from the model of the stage before, whose sizes are not known yet.
    Raises:
        ValueError: all numbers and settings that are none, but what only data or a start can tell.
    """
    name = recipe.system if recipe is not None else chosen_system(request)
    if name not in NAMED_SYSTEMS:
        return  # which is said elsewhere
    system, named = NAMED_SYSTEMS[name], NamedFiles()
    request = named.look(lambda: with_masking(request, recipe, system)) or request
    named.look(lambda: refuse_two_values(request.training, _OPTIONS, request.training.settings))
    named.look(lambda: check_device(train_config_of(request, recipe)(1).device))
    named.look(lambda: _check_sections(request, recipe, system, None if goes_on else sizes))
    named.look(lambda: _check_model(request, recipe, system, goes_on=goes_on))
    named.check()


def _check_sections(
    request: PretrainRequest, recipe: Recipe | None, system: NamedSystem, sizes: DetectorConfig | None
) -> None:
    """Of settings but for those of model and train."""
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
    if request.data.stores:
        _check_objects(request, system, chosen)
        check_search(chosen["data"], has_validation=request.data.validation is not None)
    elif request.data.text_corpus and recipe is None:  # a recipe needs a store, which is said elsewhere
        check_text_alone(system, chosen["data"], chosen["sampling"])


def _check_objects(request: PretrainRequest, system: NamedSystem, chosen: Mapping[str, Any]) -> None:
    """Raises ValueError where classes of regions are to be told and nobody says them, or are said to nobody."""
    told = system.reads_objects and chosen["sampling"].told_classes
    if told and chosen["data"].validation_retrieval:
        raise ValueError("data.validation_retrieval: a search tells no classes of regions; leave it at 0")
    if request.data.objects and not system.reads_objects:
        raise ValueError(f"--objects: {system.title} is told no classes and outlines of regions; leave it out")
    if request.data.objects and not told and not request.end_to_end:
        raise ValueError("--objects: nothing reads it; set sampling.told_classes=true, or leave it out")
    if told and not request.data.objects:
        raise ValueError(
            "sampling.told_classes: the classes of regions are read from the file that their boxes are from: name it "
            "with --objects (COCO instances .json, or VCR's folder vcr1images)"
        )


def _check_model(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem, *, goes_on: bool) -> None:
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
            # A recipe, or a model to start from, that needs --end-to-end is told so elsewhere.
            if (recipe is None or not recipe.end_to_end) and request.model.from_run is None:
                _check_masked(request, chosen)
    except ValueError as error:
        raise ValueError(f"model settings {overrides}: {error}") from None


def _check_masked(request: PretrainRequest, chosen: Mapping[str, Any]) -> None:
    """Raises ValueError for stored features that would show what is masked."""
    if chosen.get("masked_appearance") == "pixels" and not request.end_to_end and request.data.stores:
        raise ValueError(
            "masked_appearance 'pixels' shows the features of masked regions, and stored ones were measured on whole "
            "photos: they tell the answer; add --end-to-end, or choose another"
        )


def _base_fields(request: PretrainRequest, recipe: Recipe | None, system: NamedSystem) -> Mapping[str, Any] | None:
    """Of a new model, or the model to start from; None where its sizes are not known, or it has no such name."""
    asked = request.model
    if asked.from_run is not None:
        return _fields_of_start(asked.from_run, system)
    if asked.from_bert not in (None, NO_BERT):
        return None
    if recipe is None:
        size = system.sizes.get(asked.size or DEFAULT_SIZE)
        return None if size is None else size.fields
    if recipe.start and not asked.toy and asked.from_bert is None:
        return None
    return (recipe.toy_build if asked.toy else recipe.build).fields


def _fields_of_start(spec: str, system: NamedSystem) -> Mapping[str, Any] | None:
    """Of a model of this system here; None for one that is not there, of another system or of an official code."""
    try:
        found = found_model(spec)
    except ValueError:  # which is said elsewhere
        return None
    if found is None or system_of_folder(found.source) is None:
        return None
    config = read_json_object(found.source / CONFIG)
    config = config.get("model", config)  # end to end it has the encoder's beside
    if config.get("architectures") != [system.architecture]:
        return None
    return {name: value for name, value in config.items() if name in system.fields.own_fields()}


def _with_data(fields: Mapping[str, Any], overrides: Mapping[str, Any], system: NamedSystem) -> dict[str, Any]:
    """The fields as data would make them fit: what predicts features is as wide as they are."""
    objective, given = system.class_objective, "region_feature_size"
    if objective is None or fields.get(objective.field) not in objective.feature_losses:
        return dict(fields)
    if objective.labels in overrides and given not in overrides:
        return {**fields, given: overrides[objective.labels]}
    if objective.labels in overrides:
        return dict(fields)
    width = fields.get(given, getattr(system.fields, given))
    return {**fields, objective.labels: width}
