"""A fine-tuning request looked at before torch is imported: names, numbers, files, the store's features."""

from __future__ import annotations

from pathlib import Path

from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.device_choice import check_device
from roibeam.pipelines.common.files.named_files import FOLDER, NamedFiles
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.finetuning.end_to_end.encoder_request import check_tells_photos, joint_start
from roibeam.pipelines.finetuning.frame.finetune_request import NEW, FinetuneRequest
from roibeam.pipelines.finetuning.frame.finetune_settings import sections_of
from roibeam.pipelines.finetuning.frame.predict_request import STORE_MISSING, refuse_images
from roibeam.pipelines.finetuning.own_task_file import task_name
from roibeam.pipelines.finetuning.recipes.published import task_recipe_named
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.task import NamedTask
from roibeam.pipelines.finetuning.tasks.named_tasks import task_named
from roibeam.pipelines.training.model_files.model_folder import check_model_files, found_model
from roibeam.pipelines.training.model_files.start_files import bert_files, check_tokenizer_file
from roibeam.pipelines.training.model_files.trained_with import check_feature_space
from roibeam.pipelines.training.run_folder.folder import check_run_folder


def check_finetune(request: FinetuneRequest) -> None:
    """Raises ValueError with all that is wrong with what was named."""
    task, recipe = task_named(request.task), recipe_of(request)
    if request.toy and recipe is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    if request.toy and request.size is not None:
        raise ValueError("--toy says which model; leave --model out")
    named = NamedFiles()
    named.need("--data", request.data, FOLDER)
    has_store = request.store is not None and named.need("--store", request.store)
    request.encoder.need(named)
    has_annotated = request.annotated_store is not None and named.need("--annotated-store", request.annotated_store)
    has_start = request.start == NEW or named.need("--from", request.start)
    named.need_output_folder(request.out)
    if has_start and request.start != NEW:
        named.look(lambda: check_model_files(request.start))
    if has_store:
        named.look(lambda: FeatureStore(str(request.store)).close())
    named.look(lambda: _check_store(request, task))
    if has_annotated:
        named.look(lambda: FeatureStore(str(request.annotated_store)).close())
    named.look(lambda: check_device(request.device))
    named.look(lambda: _check_encoder(request))
    named.look(lambda: _check_settings(request, task, recipe))
    named.look(lambda: _check_start(request))
    named.look(lambda: check_tokenizer_file(request.tokenizer))
    named.look(request.held_out.check)
    named.look(lambda: HeldOut(request.held_out.rules))
    named.check()
    if is_main_process() and request.seeds == 1:
        check_run_folder(request.out, resume="auto" if request.resume is None else request.resume)
    found = None if request.start == NEW else found_model(request.start)
    if request.store is None:
        return
    with FeatureStore(request.store) as store:
        if request.end_to_end:
            check_tells_photos(store, request.encoder.photos)
        elif found is not None:
            check_feature_space(found, store)


def _check_store(request: FinetuneRequest, task: NamedTask) -> None:
    """Raises ValueError for a task of texts alone that is given what has images, or another one without a store."""
    if task.reads_images and request.store is None:
        raise ValueError(STORE_MISSING)
    if not task.reads_images:
        given = {
            "--store": request.store,
            "--annotated-store": request.annotated_store,
            "--held-out": request.held_out.rules,
            "--end-to-end": request.end_to_end,
        }
        refuse_images(given)


def recipe_of(request: FinetuneRequest) -> TaskRecipe | None:
    """Raises ValueError for an unknown recipe, or one of another task."""
    if request.recipe is None:
        return None
    recipe = task_recipe_named(request.recipe)
    if recipe.task != request.task:
        raise ValueError(f"--recipe {request.recipe} is for the task {recipe.task}, not {request.task}")
    return recipe


def _check_settings(request: FinetuneRequest, task: NamedTask, recipe: TaskRecipe | None) -> None:
    options = sections_of(request, task.options, recipe)[task_name(request.task)]
    checks = [task.check, None if request.end_to_end else task.check_stored]
    try:
        for check in checks:
            if check is not None:
                check(options)
    except ValueError as error:
        said = "" if recipe is None else f"--recipe {request.recipe}: "
        raise ValueError(f"{said}{error}") from None


def _check_encoder(request: FinetuneRequest) -> None:
    """Raises ValueError for what only a run end to end has, or a start that only such a run goes on from."""
    if request.end_to_end and request.annotated_store is not None:
        raise ValueError(
            "--annotated-store: --end-to-end cuts the boxes of one store out of the photos; leave it out, and name the "
            "store of the task's own boxes with --store"
        )
    if request.end_to_end:
        return
    request.encoder.refuse()
    if request.start != NEW and joint_start(request.start) is not None:
        raise ValueError(
            f"--from {request.start} was trained end to end: its encoder goes on with it, --end-to-end; stored "
            f"features are not its encoder's"
        )


def _check_start(request: FinetuneRequest) -> None:
    if request.seeds < 1:
        raise ValueError(f"--seeds {request.seeds}: expected 1 or more")
    if request.start != NEW:
        given = [name for name, value in (("--model", request.size), ("--from-bert", request.from_bert)) if value]
        if given:
            raise ValueError(f"{' and '.join(given)}: only with --from {NEW}, for a model with new weights")
        return
    if request.system is None and request.recipe is None:
        raise ValueError(f"--from {NEW}: name the model with --system")
    if request.from_bert is not None and Path(request.from_bert).expanduser().exists():
        bert_files(request.from_bert)
