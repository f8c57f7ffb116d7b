"""A request looked at before torch is imported: options that exclude each other, names, numbers, files and stores.

What is in weights is looked at later.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.weights.file_container import check_weight_file
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.files.named_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.data.captioned.checked_reads import ALL, checked_one_in
from roibeam.pipelines.data.captioned.given_stores import OWN_CAPTIONS, GivenStores, GivenValidation
from roibeam.pipelines.data.captioned.task_texts import TaskTexts
from roibeam.pipelines.data.captions.caption_files import given_file, is_tsv
from roibeam.pipelines.data.datasets.text_corpus import check_has_text
from roibeam.pipelines.data.region_names import check_background
from roibeam.pipelines.pretraining.recipes.data_kinds import check_kinds
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SIZE, NAMED_SYSTEMS, model_size, wrong_start
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.requests.checked_settings import NO_BERT, check_settings
from roibeam.pipelines.pretraining.requests.chosen_system import chosen_system, system_of_folder
from roibeam.pipelines.pretraining.requests.encoder_sections import encoder_of, requested_choice
from roibeam.pipelines.pretraining.requests.request import (
    PretrainRequest,
    RequestedEncoder,
    RequestedModel,
)
from roibeam.pipelines.pretraining.requests.requested_settings import recipe_of
from roibeam.pipelines.training.model_files.model_folder import check_model_files, found_model
from roibeam.pipelines.training.model_files.start_files import bert_files, check_tokenizer_file
from roibeam.pipelines.training.model_files.trained_with import check_feature_space
from roibeam.pipelines.training.run_folder.folder import check_run_folder
from roibeam.pipelines.training.run_folder.names import STAGES_NAME

_TOKENIZER_OF_CAPTIONS = "captions"
_SMALL_FILE = 1 << 20  # bytes; captions are read twice then, here to see that they can be read
# How the command line calls fields that have another name here.
_OPTIONS = {
    "images": "photos",
    "labels_images": "labels-photos",
    "judge_images": "judge-photos",
    "judge_photos": "max-judge-images",
}
_ENCODER_FILES = ("images", "weights", "labels", "labels_images", "labels_vocab", "judge_labels", "judge_images")


def check_request(request: PretrainRequest, *, goes_on: bool = False) -> None:
    """
    Args:
        goes_on: as a later stage does: what it starts from is filled in when its turn comes.
    Raises:
        ValueError: all that does not fit or is not there, named as the command's options, saying what to do.
        OSError: when a file cannot be read.
    """
    data, asked, named = request.data, request.model, NamedFiles()
    recipe = recipe_of(request)
    sizes = None if goes_on else named.look(lambda: _encoder_sizes(request, recipe))
    for check in (
        lambda: _check_stores(request),
        lambda: _check_model(request, recipe),
        lambda: check_settings(request, recipe, sizes, goes_on=goes_on),
        lambda: None if goes_on else _check_start(asked, recipe),
        lambda: None if goes_on else _check_run_folder(request),
        lambda: _check_labels(request.encoder) if request.end_to_end else _refuse_encoder(request, recipe),
        lambda: _check_texts(request, recipe),
        lambda: _check_kinds(request, recipe),
        lambda: None if goes_on else _check_system_of_start(request, recipe),
    ):
        named.look(check)
    if data.leave_out_held_out and not data.held_out:
        named.look(lambda: _refuse("--drop-held-out: name what is held out, with --held-out"))
    _need_files(request, named)
    named.check()
    for path in data.text_corpus:
        named.look(lambda path=path: check_has_text(str(path)))  # type: ignore[misc]
    named.check()
    if not data.stores:
        return
    texts = TaskTexts(data.task_texts) if data.task_texts else None
    named.look(lambda: checked_one_in(data.checksums))
    rules = {"caption_column": data.caption_column}
    named.look(lambda: GivenStores(data.stores, data.captions, data.weights, texts=texts, **rules))
    named.look(lambda: GivenValidation(data.validation, data.validation_store, **rules))
    if data.caption_column and not any(map(is_tsv, (*data.captions, data.validation or ""))):
        named.look(lambda: _refuse("--caption-column: none of --captions and --validation-captions is a caption .tsv"))
    for file in (*data.captions, data.validation):
        if file not in (None, OWN_CAPTIONS) and Path(file).stat().st_size <= _SMALL_FILE:
            named.look(lambda file=file: next(given_file(file, **rules).captions(), None))  # type: ignore[misc]
    for store in (each for each in (*data.stores, data.validation_store) if each and "://" not in each):
        named.look(lambda store=store: FeatureStore(store).close())  # type: ignore[misc]
    if not goes_on:
        named.look(lambda: _check_store_of_start(request))
    named.check()


def _refuse(line: str) -> NoReturn:
    raise ValueError(line)


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
    if recipe is not None and recipe.end_to_end and not recipe.on_stored:
        raise ValueError(
            f"--recipe {request.model.recipe} trains through the detector: add --end-to-end, see docs/train.md"
        )
    asked = request.encoder
    given = [field.name for field in fields(asked) if getattr(asked, field.name)]
    if given:
        raise ValueError(f"{_option(given[0])} is for --end-to-end; stored features need no photos and no encoder")


def _need_files(request: PretrainRequest, named: NamedFiles) -> None:
    data, model, encoder = request.data, request.model, request.encoder
    for store in (*data.stores, data.validation_store):
        named.need("--validation-store" if store is data.validation_store else "--store", store, FOLDER)
    for file in data.captions:
        named.need("--captions", None if file == OWN_CAPTIONS else file, FILE)
    for path in data.task_texts:
        named.need("--task-text", path, FILE)
    for path in data.text_corpus:
        named.need("--text-corpus", path, FILE)
    for place in data.objects:
        named.need("--objects", place)
    named.need("--validation-captions", data.validation, FILE)
    for rule in data.held_out:
        named.need("--held-out", rule.partition("=")[2] or None)
    named.need("--tokenizer", None if model.tokenizer == _TOKENIZER_OF_CAPTIONS else model.tokenizer)
    named.need("--from-run", model.from_run)
    named.need("--from-bert", None if model.from_bert == NO_BERT else model.from_bert)
    for name in _ENCODER_FILES:
        named.need(_option(name), getattr(encoder, name))
    named.look(lambda: check_weight_file(encoder.weights))
    named.need_output_folder(request.out)


def _encoder_sizes(request: PretrainRequest, recipe: Recipe | None) -> DetectorConfig | None:
    """Of a run end to end that begins with new weights; ValueError for a detector or conventions that are unknown, and
    missing weights.
    """
    if not request.end_to_end or request.model.from_run is not None:
        return None
    return requested_choice(encoder_of(request, recipe)).config


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
        "--objects": data.objects, "--recipe": model.recipe, "--min-match": data.min_match is not None,
        "--num-classes": data.num_classes, "--checksums": data.checksums != ALL,
    }  # fmt: skip
    unread = [option for option, value in of_stores.items() if value]
    if unread or not data.text_corpus:
        what = f" that {unread[0]} is for" if unread else "; for text without images, --text-corpus"
        raise ValueError(f"--store: name the store that roibeam extract wrote{what}")


def _check_start(asked: RequestedModel, recipe: Recipe | None) -> None:
    check_background(asked.background)
    if asked.background is not None and asked.from_run is None:
        raise ValueError(f"--background {asked.background}: of a model to start from, name it with --from-run")
    if asked.from_run is not None and asked.from_bert is not None:
        raise ValueError("--from-run and --from-bert: a model starts from one of them")
    _check_files_of_start(asked)
    if recipe is not None and recipe.after and asked.from_run is None:
        raise ValueError(f"--recipe {asked.recipe} goes on from {recipe.after}: name its run with --from-run")


def _check_files_of_start(asked: RequestedModel) -> None:
    """Raises ValueError for a folder or a file that is there, and is no model, no BERT or no tokenizer."""
    start, bert, tokenizer = asked.from_run, asked.from_bert, asked.tokenizer
    if start is not None:
        check_model_files(start)
    if bert is not None and bert != NO_BERT and Path(bert).expanduser().exists():
        bert_files(bert)
    if tokenizer != _TOKENIZER_OF_CAPTIONS:
        check_tokenizer_file(tokenizer)


def _check_run_folder(request: PretrainRequest) -> None:
    """Raises ValueError where other things are in the way of the run. Other processes may look when it has begun."""
    resume = request.training.resume
    if is_main_process() and not (request.out / STAGES_NAME).is_file():
        check_run_folder(request.out, resume="auto" if resume is None else resume)


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


def _check_kinds(request: PretrainRequest, recipe: Recipe | None) -> None:
    data, name = request.data, recipe.system if recipe is not None else chosen_system(request)
    if name not in NAMED_SYSTEMS:
        return  # which is said elsewhere
    check_kinds(
        NAMED_SYSTEMS[name],
        num_stores=len(data.stores),
        has_text_corpus=bool(data.text_corpus),
        has_task_texts=bool(data.task_texts),
        is_end_to_end=request.end_to_end,
        has_validation=data.validation is not None,
    )


def _check_system_of_start(request: PretrainRequest, recipe: Recipe | None) -> None:
    """Raises ValueError for a model of another system. What only weights can tell is not looked at."""
    start, name = request.model.from_run, recipe.system if recipe is not None else chosen_system(request)
    found = None if start is None or not Path(start).expanduser().exists() else found_model(start)
    if found is None or name not in NAMED_SYSTEMS:
        return
    held = system_of_folder(found.source)
    if held not in (None, name):
        raise wrong_start(found.source, NAMED_SYSTEMS[held].architecture, NAMED_SYSTEMS[name])


def _check_store_of_start(request: PretrainRequest) -> None:
    """Raises ValueError where the first store has other features than the model to start from learned."""
    start, store = request.model.from_run, request.data.stores[0]
    found = None if start is None else found_model(start)
    if found is not None and "://" not in store:
        with FeatureStore(store) as opened:
            check_feature_space(found, opened)
