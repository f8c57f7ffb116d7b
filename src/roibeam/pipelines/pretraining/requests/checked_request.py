"""A request looked at before torch is imported: options that exclude each other, names, files and stores.

Settings of `--set` and weights are looked at later, by what they are of.
"""

from __future__ import annotations

from dataclasses import fields

from roibeam.features.store import FeatureStore
from roibeam.pipelines.foundation.files.named_files import check_named_files, check_output_is_no_file
from roibeam.pipelines.inputs.captioned.given_stores import OWN_CAPTIONS, GivenStores, GivenValidation
from roibeam.pipelines.inputs.captioned.task_texts import TaskTexts
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SIZE, model_size
from roibeam.pipelines.pretraining.recipes.published import recipe_named
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system
from roibeam.pipelines.pretraining.requests.request import PretrainRequest, RequestedEncoder, RequestedModel

NO_BERT = "none"  # in place of one
# How the command line calls fields that have another name here.
_OPTIONS = {
    "images": "photos",
    "labels_images": "labels-photos",
    "judge_images": "judge-photos",
    "judge_photos": "max-judge-images",
}
_ENCODER_FILES = ("images", "weights", "labels", "labels_images", "labels_vocab", "judge_labels", "judge_images")


def check_request(request: PretrainRequest) -> None:
    """
    Raises:
        ValueError: whatever does not fit or is not there, named as the command's option, saying what to do.
        OSError: when a file cannot be read.
    """
    data, asked = request.data, request.model
    _check_stores(request)
    recipe = None if asked.recipe is None else recipe_named(asked.recipe)
    _check_model(request, recipe)
    _check_start(asked, recipe)
    if request.end_to_end:
        _check_labels(request.encoder)
    else:
        _refuse_encoder(request, recipe)
    _check_texts(request, recipe)
    if data.leave_out_held_out and not data.held_out:
        raise ValueError("--drop-held-out: name what is held out, with --held-out")
    _check_files(request)
    if not data.stores:
        return
    texts = TaskTexts(data.task_texts, id_rule=data.id_rule) if data.task_texts else None
    GivenStores(data.stores, data.captions, data.weights, texts=texts, id_rule=data.id_rule)
    GivenValidation(data.validation, data.validation_store, id_rule=data.id_rule)
    for store in (each for each in (*data.stores, data.validation_store) if each and "://" not in each):
        FeatureStore(store).close()


def _check_model(request: PretrainRequest, recipe: Recipe | None) -> None:
    asked = request.model
    if recipe is not None and (asked.system or asked.size):
        raise ValueError(f"--recipe {asked.recipe} says which system and model; leave --system and --model out")
    if asked.toy and recipe is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    if recipe is None:
        model_size(chosen_system(request), asked.size or DEFAULT_SIZE)


def _refuse_encoder(request: PretrainRequest, recipe: Recipe | None) -> None:
    """Raises ValueError where a run on stored features is asked for, and something that only one end to end has."""
    if recipe is not None and recipe.end_to_end:
        raise ValueError(
            f"--recipe {request.model.recipe} trains through the detector: add --end-to-end, see docs/end-to-end.md"
        )
    asked = request.encoder
    given = [field.name for field in fields(asked) if getattr(asked, field.name)]
    if given:
        raise ValueError(f"{_option(given[0])} is for --end-to-end; stored features need no photos and no encoder")


def _check_files(request: PretrainRequest) -> None:
    data, model, encoder = request.data, request.model, request.encoder
    from_bert = None if model.from_bert == NO_BERT else model.from_bert
    check_named_files(
        [
            *(("--store", store) for store in data.stores),
            *(("--captions", file) for file in data.captions if file != OWN_CAPTIONS),
            *(("--task-text", file) for file in data.task_texts),
            *(("--text-corpus", file) for file in data.text_corpus),
            ("--validation-captions", data.validation),
            ("--validation-store", data.validation_store),
            *(("--held-out", rule.partition("=")[2] or None) for rule in data.held_out),
            ("--from-run", model.from_run),
            ("--from-bert", from_bert),
            *((_option(name), getattr(encoder, name)) for name in _ENCODER_FILES),
        ]
    )
    check_output_is_no_file(request.out)


def _check_stores(request: PretrainRequest) -> None:
    """Raises ValueError where no store is named, but something that is for one, or nothing to learn from."""
    data, model = request.data, request.model
    if data.stores:
        return
    of_stores = {
        "--captions": data.captions, "--store-weight": data.weights, "--task-text": data.task_texts,
        "--validation-captions": data.validation, "--validation-store": data.validation_store,
        "--held-out": data.held_out, "--numbers-of": data.images_of, "--drop-held-out": data.leave_out_held_out,
        "--end-to-end": request.end_to_end, "--cache-dir": data.stage_to, "--cache-gb": data.stage_gb,
        "--recipe": model.recipe, "--min-match": data.min_match is not None,
        "--num-classes": data.num_classes,
    }  # fmt: skip
    unread = [option for option, value in of_stores.items() if value]
    if unread or not data.text_corpus:
        what = f" that {unread[0]} is for" if unread else "; for text without images, --text-corpus"
        raise ValueError(f"--store: name the store that roibeam extract wrote{what}")


def _check_start(asked: RequestedModel, recipe: Recipe | None) -> None:
    if asked.background_first is not None and asked.from_run is None:
        raise ValueError("--background-first/--background-last: of a model to start from, name it with --from-run")
    if asked.from_run is not None and asked.from_bert is not None:
        raise ValueError("--from-run and --from-bert: a model starts from one of them")
    if recipe is not None and recipe.after and asked.from_run is None:
        raise ValueError(f"--recipe {asked.recipe} goes on from {recipe.after}: name its run with --from-run")


def _check_labels(asked: RequestedEncoder) -> None:
    for option, needed in (
        ("labels_images", asked.labels),
        ("judge_images", asked.judge_labels),
        ("judge_photos", asked.judge_labels),
        ("labels_vocab", asked.labels or asked.judge_labels),
    ):
        if getattr(asked, option) is not None and needed is None:
            name = "--labels" if option.startswith("labels") else "--judge-labels"
            raise ValueError(f"{_option(option)} is for {name}; name the labels, or leave it out")


def _option(field: str) -> str:
    return f"--{_OPTIONS.get(field, field.replace('_', '-'))}"


def _check_texts(request: PretrainRequest, recipe: Recipe | None) -> None:
    name = request.model.recipe
    if recipe is not None and recipe.text_corpus and not request.data.text_corpus:
        raise ValueError(f"--recipe {name} mixes in text without images: name the files with --text-corpus")
    if recipe is not None and recipe.task_text and not request.data.task_texts:
        raise ValueError(f"--recipe {name} reads a task's own text: name its files with --task-text")
