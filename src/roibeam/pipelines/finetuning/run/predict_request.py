"""Request of predictions by a fine-tuned model: names, paths and numbers alone, and their checks; no torch."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.compute import check_device
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles, read_json_object
from roibeam.pipelines.common.page_layout import check_page_file
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.metrics.own_labels import check_scores_file
from roibeam.pipelines.finetuning.prediction_card import card_path
from roibeam.pipelines.finetuning.requests import FINETUNING, PredictRequest
from roibeam.pipelines.finetuning.rows import LABEL, PHRASE, REGION
from roibeam.pipelines.finetuning.run.finetune_request import best_of_seeds, check_photo_places
from roibeam.pipelines.finetuning.scored_tasks import has_own_tables
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS, check_data_folder
from roibeam.pipelines.training.model_files.model_folder import CONFIG, MAX_CONFIG_BYTES, FoundModel, model_folder
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.run_folder.folder import best_checkpoint_or_folder, saved_config
from roibeam.pipelines.training.train_config import check_precision

# Facts of the task that a run writes.
_WRITTEN = MappingProxyType(
    {"task": str, "form": str, "labels": str, "system": str, "num_images": int, "task_options": dict, "layout": dict}
)
STORE_MISSING = "--store is missing: it has the regions of the task's images; roibeam extract makes one"


def checkpoints_of(request: PredictRequest) -> list[FoundModel]:
    """The model of each run, in the folder of its checkpoint: the best by `train.best_by`, else the newest. Raises
    ValueError when a run is none of fine-tuning, or has no checkpoint yet."""
    return [task_checkpoint(run) for run in _runs(request)]


def checkpoint_notes(request: PredictRequest) -> list[str]:
    """Notes on the chosen checkpoint of each run with `train.best_by`."""
    notes = [best_checkpoint_or_folder(best_of_seeds(run))[1] for run in _runs(request)]
    return [line for line in notes if line]


def _runs(request: PredictRequest) -> list[Path]:
    return [run for run in (request.run, request.run_2) if run is not None]


def task_checkpoint(run: Path) -> FoundModel:
    """The model of a fine-tuning run, or in one of its checkpoints. Raises ValueError when the run is none of
    fine-tuning, or has no checkpoint yet."""
    found = model_folder(best_checkpoint_or_folder(best_of_seeds(run))[0])[0]
    config = found.parent / "config.json"
    saved = read_json_object(config, max_bytes=MAX_CONFIG_BYTES) if config.is_file() else {}
    task, recorded = saved.get("task"), saved.get("recorded")
    if not isinstance(task, dict) or task.get("kind") != FINETUNING:
        is_first = isinstance(task, dict) and "captions" in task
        raise ValueError(
            f"{run} is no run of roibeam finetune"
            + f"; it is one of roibeam pretrain: first type roibeam finetune with --from {run}" * is_first
        )
    for name, kind in _WRITTEN.items():
        if not isinstance(task.get(name), kind):
            raise ValueError(f"{config}: is damaged: task.{name} is {reprlib.repr(task.get(name))}")
    labels = recorded.get("labels", []) if isinstance(recorded, dict) else None
    if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
        raise ValueError(f"{config}: is damaged: recorded.labels is {reprlib.repr(labels)}")
    return FoundModel(found)


def check_predict(request: PredictRequest) -> None:
    """Raises ValueError with all faults of the request."""
    named = NamedFiles()
    has_run = named.need("RUN", request.run, FOLDER) & named.need("RUN_2", request.run_2, FOLDER)
    has_store = named.need("--store", request.store) and request.store is not None
    named.need("--data", request.data, FOLDER)
    named.need("--photos", request.photos, FOLDER)
    named.need_output_folder(request.out.parent)
    if request.page is not None:
        named.need_output_folder(request.page.parent)
    named.look(lambda: check_device(request.device))
    named.look(lambda: check_precision(request.precision))
    named.need("--annotated-store", request.annotated_store)
    found = named.look(lambda: checkpoints_of(request)) if has_run else None
    if has_store:
        named.look(lambda: FeatureStore(str(request.store)).close())
    named.look(lambda: _check_results_file(request.out))
    if request.scores is not None:
        scores = request.scores
        named.need_output_folder(scores.parent)
        named.look(lambda: check_scores_file(scores))
    if request.page is not None and request.page.parent.is_dir():
        page = request.page
        named.look(lambda: check_page_file("--page", page))
    named.check()
    assert found is not None
    if not predicts_pairs(found[0]) and (request.max_images or request.folds != 1):
        raise ValueError("--max-images and --folds are of retrieval; leave them out")
    saved = [saved_config(each.source.parent) for each in found]
    described = [each["task"] for each in saved]
    if len({each["task"] for each in described}) > 1:
        tasks = " and ".join(each["task"] for each in described)
        raise ValueError(f"RUN and RUN_2 learned different tasks, {tasks}; one file is of one task")
    if request.scores is not None and (described[0]["form"] != LABEL or not saved[0]["recorded"].get("labels")):
        raise ValueError(
            f"--scores: {described[0]['task']} chooses among no labels, and has no scores of any; leave it out"
        )
    if (name := described[0]["task"]) in TASKS:
        _check_format(name, request)
        check_data_folder(name, request.data, TASKS[name].options(), request.split or "val")
    if not described[0]["num_images"]:
        given = {
            "--store": request.store,
            "--annotated-store": request.annotated_store,
            "--photos": request.photos,
            "--blind": request.blind,
            "--permute-images": request.permute_images,
            "--min-match": request.min_match != 1,
        }
        refuse_images(given)
        return
    if request.store is None:
        raise ValueError(STORE_MISSING)
    if request.permute_images and request.blind:
        raise ValueError("--permute-images: a model that is --blind sees no other image either; leave one out")
    if request.permute_images and described[0]["form"] in (REGION, PHRASE):
        raise ValueError("--permute-images: this task chooses among the regions of its own image; --blind hides them")
    _check_min_match(request, described[0])
    with FeatureStore(request.store) as store:
        from_photos = [reads_photos(each) for each in found]
        if any(from_photos):
            check_photo_places(store, request.photos)
        elif request.photos is not None:
            raise ValueError(
                f"--photos: {request.run} was trained on stored features and reads no photos; leave it out"
            )
        for each, reads in zip(found, from_photos, strict=True):
            if not reads:
                check_feature_space(each, store)


_FORMATS = {  # of predictions; others are .json
    "labels": (".jsonl", ".csv"), "vcr": (".csv",), "nlvr2": (".csv",), **dict.fromkeys(GLUE_TASKS, (".tsv",)),
}  # fmt: skip


def _check_format(name: str, request: PredictRequest) -> None:
    """Raises ValueError for the name of another format than predictions of a task are written in."""
    tables = (".json", ".csv") if name == "vqa" and has_own_tables(request.data) else (".json",)
    known, given = _FORMATS.get(name, tables), request.out.suffix.lower()
    if given in (".json", ".jsonl", ".csv", ".tsv", ".parquet") and given not in known and not TASKS[name].all_pairs:
        named = " or ".join(request.out.stem + each for each in known)
        raise ValueError(f"--out {str(request.out)!r}: {name} has no predictions as {given}; call it {named}")


def predicts_pairs(found: FoundModel) -> bool:
    """Whether the task of a checkpoint scores all texts with all images."""
    task = saved_config(found.source.parent)["task"]["task"]
    return task in TASKS and TASKS[task].all_pairs


def _check_min_match(request: PredictRequest, described: Mapping[str, Any]) -> None:
    """Raises ValueError where groups cannot be predicted without their images."""
    if request.min_match == 1:
        return
    if described["form"] != LABEL:
        raise ValueError(
            f"--min-match: {described['task']} chooses among regions or texts that name them, so its images must all "
            f"be there; leave it out, and extract those that are missing"
        )
    if request.permute_images:
        raise ValueError("--min-match: --permute-images shows every question another image, so all must be there")


def refuse_images(given: Mapping[str, object]) -> None:
    """Raises ValueError for an option, by its name, that is given to a task of texts alone."""
    for name, value in given.items():
        if value:
            raise ValueError(f"{name}: this task is of texts alone and shows no image; leave it out")


def reads_photos(found: FoundModel) -> bool:
    """Whether a model was trained end to end."""
    return "end_to_end" in read_json_object(found.source / CONFIG)


def _check_results_file(file: Path) -> None:
    """Checks that the result file is new or older predictions, which have a card."""
    if file.is_dir():
        raise ValueError(f"--out {str(file)!r} is a folder; name a file to write")
    if file.exists() and not card_path(file).is_file():
        raise ValueError(
            f"--out {str(file)!r} is there already, and roibeam did not write it (no {card_path(file).name} lies "
            f"beside it); name another file"
        )
