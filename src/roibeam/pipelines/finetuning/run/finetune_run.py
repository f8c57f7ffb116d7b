"""Fine-tuning run: a pre-trained model, a store and a task's files in, a run folder out.

task's files -> groups -> joined with the store -> a system's rows -> TaskBatch -> network -> loss -> the loop

The folder is that of any training. Its config.json, and that of every checkpoint, has all that predicting needs: task,
labels, system, head and layout.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from roibeam.features.reading.temporary_copy import unfinished_lines
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.region_record import BOX_NUMBERS
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.compute import is_main_process, num_processes
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.statistics.verdict import Figure, Judged, judged_line
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.finetune_request import resolve_encoder
from roibeam.pipelines.finetuning.run.finetune_settings import (
    FinetuneData,
    check_finetune,
    evaluation_interval,
    evaluation_words,
    published_encoder,
    recipe_of,
    resume_notes,
    sections_of,
    steps_for,
    with_recorded_evaluation,
    without_evaluations,
)
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.group_images import GroupPhotos
from roibeam.pipelines.finetuning.run.group_task import GroupTask, PhotoTask, TurnsTask, drawn_once
from roibeam.pipelines.finetuning.run.losses import TaskLoss, loss_named
from roibeam.pipelines.finetuning.run.network import (
    TaskNetwork,
    set_dropout,
    start_from_words,
    started_network,
    with_encoder,
)
from roibeam.pipelines.finetuning.run.predict_request import FINETUNING
from roibeam.pipelines.finetuning.run.task_data import (
    StorePair,
    TaskData,
    check_annotated,
    guarded_data,
    joined_data,
    opened_store,
)
from roibeam.pipelines.finetuning.run.task_start import TaskStart, chosen_encoder, start_of, task_encoder
from roibeam.pipelines.finetuning.scored_tasks import digest_of_task, is_own, task_name
from roibeam.pipelines.finetuning.systems.options import UNIFORM_HEAD, WORDS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import DownstreamTask, check_best_by
from roibeam.pipelines.finetuning.tasks.named_tasks import task_named
from roibeam.pipelines.training.encoder_change import EncoderChange
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.model_files.provenance import (
    check_feature_space,
    check_object_classes,
    digest_of_classes,
)
from roibeam.pipelines.training.model_files.tokenizer import (
    MOST_TEXTS,
    CaptionTokenizer,
    evenly,
    load_tokenizer,
    unknown_notes,
)
from roibeam.pipelines.training.run_folder.files import checkpoint_step, latest_checkpoint
from roibeam.pipelines.training.run_folder.folder import Resume, check_run_folder, defaults_of
from roibeam.pipelines.training.run_folder.report_page import write_training_page
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary, write_summary
from roibeam.pipelines.training.run_folder.training_data import write_trained_images
from roibeam.pipelines.training.train_config import TrainConfig

logger = logging.getLogger(__name__)

_QUESTION = (
    "The task's own measures, as roibeam score gives them. Chance is what a model reaches that always says the "
    "commonest answer, or chooses among the candidates by lot."
)


@dataclass(frozen=True)
class FinetuneResult:
    """
    Attributes:
        run_dir: the run folder.
        training: where the loop ended.
        figures: the task's measures on the validation split, 0..1, at the end, or of the best checkpoint by
            `train.best_by`, each beside chance; empty where nothing was judged.
        evaluated_step: step of these measures.
        last_evaluation: measures at the end.
        main: name of the main one; "" for none.
        asked: number of evaluated groups.
        notes: on what was left out, and on validation images that the start was trained on.
        encoder: end to end, what is masked and how far each stage of the region encoder moved, see encoder_change.py;
            None on stored features, and in other processes than the main one.
    """

    run_dir: Path
    training: TrainResult
    figures: tuple[Figure, ...]
    evaluated_step: int
    last_evaluation: Mapping[str, float | None]
    main: str
    asked: int
    notes: tuple[str, ...]
    encoder: Mapping[str, Any] | None = None

    @property
    def evaluation(self) -> dict[str, float | None]:
        """The value of each figure, by name; None where there was nothing to measure."""
        return {figure.name: figure.value for figure in self.figures}

    @property
    def is_of_best(self) -> bool:
        """Whether `evaluation` is of a checkpoint that `train.best_by` chose."""
        return self.training.best is not None

    def to_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "run": str(self.run_dir),
            "checkpoint": str(self.training.checkpoint),
            "step": self.training.step,
            "seconds": round(self.training.seconds, 1),
            "evaluation": self.evaluation,
            "figures": [figure.to_json() for figure in self.figures],
            "evaluated_step": self.evaluated_step,
            "last_evaluation": dict(self.last_evaluation),
            "main": self.main,
            "evaluated_on": self.asked,
            "last": self.training.last,
            "notes": list(self.notes),
            "encoder": self.encoder,
        }


def run_finetuning(request: FinetuneRequest) -> FinetuneResult:
    """Runs fine-tuning with one seed, and writes the run folder.

    Raises:
        ValueError: for a request that does not fit; the message names the command's option and what to do.
    """
    check_finetune(request)
    resume: Resume = "auto" if request.resume is None else request.resume
    if is_main_process():
        check_run_folder(request.out, resume=resume)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    recipe, named = recipe_of(request), task_named(request.task)
    if request.end_to_end and recipe is not None:
        request = resolve_encoder(request, request.from_, published_encoder(request, recipe))
    sections = sections_of(request, named.options, recipe)
    start = start_of(request, recipe)
    with waiting("reading the task"):
        task = named.open(request.data, sections[task_name(request.task)], None)
    check_annotated(task, request.annotated_store, from_photos=request.end_to_end)
    if start.found is not None and task.input_classes is not None:
        check_object_classes(start.found, task.input_classes.names)
    with opened_store(request.store) as store, opened_store(request.annotated_store) as annotated:
        stores = [each for each in (store, annotated) if each is not None]
        for line in unfinished_lines(stores) if is_main_process() else ():  # it may be why images are missing
            logger.warning("%s", line)
        read = [] if request.end_to_end or start.found is None else stores  # photos take its boxes alone
        choices = [note for each in read for note in (check_feature_space(start.found, each) if start.found else [])]
        choices += _recipe_notes(recipe, request, store, annotated)
        source = store if annotated is None or store is None else StorePair(store, annotated)
        data = joined_data(task, store, source, request.min_match)
        leak_notes: list[str] = []
        if store is not None:
            data, leak_notes = guarded_data(request, task, store, data, start, allowed=sections["data"].shared_images)
        resumed = resume_notes(request, named.options, recipe)
        notes = [*resumed, *choices, *_start_notes(recipe, request, start, task), *data.notes, *leak_notes]
        for note in notes:
            logger.warning("%s", note)
        groups = _groups_of_steps(task, data.train.groups)
        step_groups = _step_groups(sections)
        steps = steps_for(recipe, request, groups, step_groups)
        if request.epochs is not None and steps is not None:
            words = f"{request.epochs:g} epochs of {plural(groups, 'group')} are {plural(steps, 'step')}"
            logger.info("%s", f"{words} of {step_groups:,}")
        judged = min(len(data.evaluated), sections["data"].validation_groups or len(data.evaluated))
        sections = sections_of(
            request,
            named.options,
            recipe,
            steps=steps,
            evaluate_every=evaluation_interval(steps or sections["train"].steps, step_groups, judged),
            whole_image=start.system.photo_whole_image,
        )
        return _trained(request, resume, sections, start, task, source, data, notes)


def _groups_of_steps(task: DownstreamTask, groups: Sequence[TaskGroup]) -> int:
    """Number of groups of an epoch: a step has a batch of each of several problems that make one update together."""
    if task.turns is None or task.updates != "step":
        return len(groups)
    return len(groups) // len(set(map(task.turns, groups)))


def _recipe_notes(
    recipe: TaskRecipe | None, request: FinetuneRequest, store: FeatureStore | None, annotated: FeatureStore | None
) -> list[str]:
    """Notes on stores that differ from those of the recipe; none for a toy, whose stores always differ."""
    if recipe is None or recipe.features is None or request.toy:
        return []
    notes = [
        features.note(str(request.recipe), str(each.path), each.fingerprint, boxes_alone=request.end_to_end)
        for each, features in ((store, recipe.features), (annotated, recipe.features.of_annotated))
        if each is not None and features is not None
    ]
    return [note for note in notes if note is not None]


def _start_notes(
    recipe: TaskRecipe | None, request: FinetuneRequest, start: TaskStart, task: DownstreamTask
) -> tuple[str, ...]:
    if recipe is None:
        return ()
    return recipe.start_notes(
        pretrained=start.found is not None,
        from_bert=request.from_bert is not None,
        end_to_end=request.end_to_end,
        alone=task.turns is None,
    )


def _trained(
    request: FinetuneRequest,
    resume: Resume,
    sections: Mapping[str, Any],
    start: TaskStart,
    task: DownstreamTask,
    source: FeatureStore | StorePair | None,
    data: TaskData,
    notes: Sequence[str],
) -> FinetuneResult:
    tokenizer, unknown = _tokenizer(request, resume, start, data)
    task, data = _with_draws(task, data, source, request.out)
    config, judged = _validation_plan(request, sections, task, data)
    output = OutputSpec(task.form, len(task.labels) or 1, task.num_images, task.whole_image, task.num_heads)
    loss = loss_named(task.form, task.loss, task.region_targets, task.label_weights)
    torch.manual_seed(config.seed)
    with waiting("building the model"):
        first = source.store if isinstance(source, StorePair) else source
        width = sections["detector"].feature_dim if request.end_to_end else None if first is None else first.feature_dim
        if width is not None:
            width += BOX_NUMBERS * sections["layout"].box_numbers
        model = start.model(vocab_size=tokenizer.vocab_size, width=width)
        network = started_network(
            start.system,
            model,
            output,
            sections["head"].kind,
            source=start.source,
            beside=task.beside,
            num_input_classes=0 if task.input_classes is None else task.input_classes.num_classes,
            grounding=task.grounding,
        )
        notes = [*notes, *_init_head_and_dropout(network, sections, start, output, task.labels, tokenizer)]
    batches = GroupBatches(
        start.system, network.encoder_config, tokenizer, sections["layout"], output, source, loss=loss,
        task=task,
    )  # fmt: skip
    if request.end_to_end and first is not None:
        network, photos = _from_photos(request, sections, start, task, network, first, data)
        batches = batches.with_photos(photos)
    batches.check(data.train.groups[0])
    with waiting("looking for boxes"):
        batches.check_boxes([*data.train.groups, *data.evaluated])
    with waiting("looking for long texts"):
        cuts = [
            *batches.notes_of_cuts(data.train.groups, "training"),
            *batches.notes_of_cuts(data.evaluated, "validation"),
        ]
    cuts = [*unknown, *cuts]
    for note in cuts:
        logger.warning("%s", note)
    _write_first(request, resume, tokenizer, data, start)
    notes = [*notes, *cuts]
    scale = sections["encoder"].learning_rate_scale if request.end_to_end else 1.0
    trained = _build_train_task(network, batches, task, output, loss, data, sections["data"], config.seed, scale)
    described = _described(request.task, task, sections, start, tokenizer, _stores_of(source), data)
    moved = _encoder_change(request, start, network, task, trained)
    result = train(
        trained,
        config,
        request.out,
        description={"model": network.described, **described},
        defaults={
            **{name: defaults_of(sections[name]) for name in ("data", "layout", "head")},
            "task_options": defaults_of(sections[task_name(request.task)]),
            "model": _model_defaults(network.encoder_config),
        },
        recorded={**_recorded(request, start, task, source, data, notes), "start_tells_images": start.knows_images},
        resume=resume,
    )
    evaluation = result.evaluation
    if evaluation is None:
        with waiting("evaluating"):
            evaluation = trained.evaluate()
    encoder = None
    if moved is not None:
        encoder = moved.after()
        best = None if result.best is None else checkpoint_step(result.best)
        write_training_page(request.out, best_step=best, ended_early=result.ended_early)
    return replace(_result(request.out, result, evaluation, len(judged), notes), encoder=encoder)


def _write_first(
    request: FinetuneRequest, resume: Resume, tokenizer: CaptionTokenizer, data: TaskData, start: TaskStart
) -> None:
    """Writes the tokenizer of a new run and the list of training images, in the main process."""
    if not is_main_process():
        return
    if not (resume and (request.out / "tokenizer").is_dir()):
        tokenizer.save(request.out / "tokenizer", of_run=True)
    keys = (key for image in data.train.image_ids() for key in data.names.keys(image))
    write_trained_images(request.out, keys, before=start.run)


def _encoder_change(
    request: FinetuneRequest,
    start: TaskStart,
    network: TaskNetwork,
    task: DownstreamTask,
    trained: GroupTask | TurnsTask,
) -> EncoderChange | None:
    """Record of how far the encoder moves, end to end in the main process; a new run looks at its first batch."""
    if not request.end_to_end or not is_main_process():
        return None
    joint: Any = network.module
    change = EncoderChange(request.out, joint, _encoder_weights(request, start))
    if change.needs_batch:
        photos: Any = trained
        masks = task.beside is not None and task.beside.hidden_regions > 0
        change.before(*photos.first_photos(), masks=masks)
    return change


def _result(run_dir: Path, training: TrainResult, last: Judged, evaluated: int, notes: Sequence[str]) -> FinetuneResult:
    """Result of a run: evaluation of the best checkpoint (`train.best_by`), else of the last; also on its page."""
    best, figures, step = training.best_evaluation, last.figures, training.step
    if best is not None and best["step"] != step:
        step = best["step"]
        kept = zip(judged_line(best, last).figures, last.figures, strict=True)
        # All evaluations have the same groups, so that chance, which old lines lack, is that of the last.
        figures = tuple(replace(figure, chance=each.chance, items=each.items) for figure, each in kept)
    if figures and is_main_process():
        words = f"{evaluated:,} of the validation split" + (f", the best checkpoint, step {step:,}" if best else "")
        summary = TrainingSummary.of_figures(figures, system="", asked=words, held_out=True, question=_QUESTION)
        write_summary(run_dir, summary)
        best_step = None if training.best is None else checkpoint_step(training.best)
        write_training_page(run_dir, best_step=best_step, ended_early=training.ended_early)
    return FinetuneResult(
        run_dir=run_dir,
        training=training,
        figures=figures,
        evaluated_step=step,
        last_evaluation=last,
        main=next(iter(last), ""),
        asked=evaluated,
        notes=tuple(notes),
    )


def _validation_plan(
    request: FinetuneRequest, sections: Mapping[str, Any], task: DownstreamTask, data: TaskData
) -> tuple[TrainConfig, Sequence[TaskGroup]]:
    """The training settings, and the groups that evaluations predict; logs what these will cost."""
    judged = data.evaluated[: sections["data"].validation_groups or None]
    if not judged:
        logger.info("no evaluations: beside %s nothing is left to be judged on", task.train)
        return without_evaluations(sections["train"]), judged
    config = with_recorded_evaluation(sections["train"], request.out, request.settings)
    check_best_by(task, judged, config.best_by)
    if config.evaluate_every and latest_checkpoint(request.out) is None:
        words = evaluation_words(config, _step_groups(sections), len(judged), len(data.evaluated))
        logger.info("%s", words)
    return config, judged


def _step_groups(sections: Mapping[str, Any]) -> int:
    """Number of groups of a step, of each of several problems that make one update together."""
    return int(sections["data"].batch_size * sections["train"].accumulation * num_processes())


def _init_head_and_dropout(
    network: TaskNetwork,
    sections: Mapping[str, Any],
    start: TaskStart,
    output: OutputSpec,
    labels: Sequence[str],
    tokenizer: CaptionTokenizer,
) -> list[str]:
    """Sets dropout and initialises the head. Returns notes if the start was fine-tuned."""
    dropout, notes = sections["model"].dropout, list[str]()
    if dropout is not None:
        set_dropout(network, dropout)
    if output.num_heads > 1 and sections["head"].kind != UNIFORM_HEAD:
        notes = [f"heads {output.num_heads} change nothing: the head of the release is one; add --set head.kind=ours"]
        logger.warning("%s", notes[0])
    from_words = sections["head"].start == WORDS
    if start.first is not None:
        notes.append(start.first.go_on(network, start.system, output, digest_of_labels(labels), keeps=not from_words))
        logger.info("%s", notes[-1])
    if from_words:
        start_from_words(network, labels, tokenizer)
    return notes


def _with_draws(
    task: DownstreamTask, data: TaskData, store: FeatureStore | StorePair | None, run: Path
) -> tuple[DownstreamTask, TaskData]:
    """The task that draws the rows of training groups, and validation groups with their drawn rows."""
    if task.drawn_from is None or store is None:
        return task, data
    with waiting("looking for distractors"):
        drawing = replace(task, drawn=task.drawn_from(data.train.groups, store, run))
    if data.validation is None:
        return drawing, data
    draw = task.drawn_from(data.validation.groups, store, None)
    return drawing, replace(data, validation=replace(data.validation, groups=drawn_once(data.validation.groups, draw)))


def _from_photos(
    request: FinetuneRequest,
    sections: Mapping[str, Any],
    start: TaskStart,
    task: DownstreamTask,
    network: TaskNetwork,
    store: FeatureStore,
    data: TaskData,
) -> tuple[TaskNetwork, GroupPhotos]:
    """The network with its encoder, and the photos that this one reads."""
    with waiting("building the region encoder"):
        encoder = task_encoder(request, sections["detector"], sections["encoder"], start.encoder)
    choices, options = sections["end_to_end"], sections["photos"]
    images = dict.fromkeys([*data.train.image_ids(), *(data.validation.image_ids() if data.validation else ())])
    with waiting("looking for the photos"):
        photos = GroupPhotos(store, images, request.photos, encoder, choices, options, outlines=task.outlines)
    return with_encoder(network, encoder, choices), photos


def _model_defaults(config: Any) -> dict[str, Any]:
    """Defaults of the model config at each place where a network's description may hold it."""
    own = defaults_of(config)
    return {**own, "model": {**own, "model": own}}


def _build_train_task(
    network: TaskNetwork,
    batches: GroupBatches,
    task: DownstreamTask,
    output: OutputSpec,
    loss: TaskLoss,
    data: TaskData,
    options: FinetuneData,
    seed: int,
    encoder_scale: float,
) -> GroupTask | TurnsTask:
    """The `TrainTask`: one problem, or several in turn, each in an order of its own."""
    kind: Callable[..., GroupTask] = GroupTask
    if batches.photos is not None:
        kind = partial(PhotoTask, encoder_scale=encoder_scale)
    if task.turns is None:
        return kind(network, batches, task, output, loss, data.train.groups, data.evaluated, options, seed=seed)
    problems: dict[str, list[TaskGroup]] = {}
    for group in data.train.groups:
        problems.setdefault(task.turns(group), []).append(group)
    tasks: dict[str, GroupTask] = {}
    for number, (name, groups) in enumerate(problems.items()):
        judged = () if tasks else data.evaluated
        tasks[name] = kind(network, batches, task, output, loss, groups, judged, options, seed=(seed, number))
    return TurnsTask(tasks, task.updates, task.loss_scales)


def _tokenizer(
    request: FinetuneRequest, resume: Resume, start: TaskStart, data: TaskData
) -> tuple[CaptionTokenizer, list[str]]:
    """The tokenizer: saved by the resumed run, else of the start, else built from the texts; and warnings about unknown
    words.

    Raises:
        ValueError: when a new run's tokenizer does not know most of the words.
    """
    saved = request.out / "tokenizer"
    goes_on = bool(resume) and saved.is_dir()
    if goes_on:
        tokenizer = load_tokenizer(str(saved))
    else:
        tokenizer = start.tokenizer(request.tokenizer, _texts(data.train.groups))
    unknown = []
    for what, groups in (("training texts", data.train.groups), ("validation texts", data.evaluated)):
        texts = list(_texts(evenly(groups, MOST_TEXTS)))
        unknown += unknown_notes(tokenizer, what, texts, stops=groups is data.train.groups and not goes_on)
    return tokenizer, unknown


def _texts(groups: Iterable[TaskGroup]) -> Iterator[str]:
    return (part.text for group in groups for row in group.rows for part in row.parts)


def _described(
    name: str,
    task: DownstreamTask,
    sections: Mapping[str, Any],
    start: TaskStart,
    tokenizer: CaptionTokenizer,
    stores: Sequence[FeatureStore],
    data: TaskData,
) -> dict[str, Any]:
    """Settings that must match on resume, and that predicting needs."""
    kept = {each: value for each, value in asdict(sections["data"]).items() if each != "validation_groups"}
    # The origin of imported features is unknown: their bytes have to do.
    imported = [each for each in stores if each.fingerprint.feature_space.startswith(IMPORTED_PREFIX)]
    return {
        "kind": FINETUNING,
        "task": task_name(name),
        **({"task_file": digest_of_task(name)} if is_own(name) else {}),
        "task_options": asdict(sections[task_name(name)]),
        "form": task.form,
        "num_images": task.num_images,
        "labels": digest_of_labels(task.labels),
        "system": start.system.name,
        "head": asdict(sections["head"]),
        **sections["model"].described(),
        "layout": asdict(sections["layout"]),
        "data": kept,
        "groups": _digest_of_groups(data.train.groups),
        "tokenizer": tokenizer.digest,
        "feature_space": stores[0].fingerprint.feature_space if stores else None,
        **({"imported_features": [each.manifest.content_digest for each in imported]} if imported else {}),
        **_described_photos(sections),
    }


def _described_photos(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run from photos, beside the config of its model."""
    if "photos" not in sections:
        return {}
    return {"photos": sections["photos"].described(), **sections["encoder"].described()}


def _stores_of(source: FeatureStore | StorePair | None) -> list[FeatureStore]:
    both = (source.store, source.second) if isinstance(source, StorePair) else (source,)
    return [each for each in both if each is not None]


def _recorded(
    request: FinetuneRequest,
    start: TaskStart,
    task: DownstreamTask,
    source: FeatureStore | StorePair | None,
    data: TaskData,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Facts that may differ on resume."""
    stores = _stores_of(source)
    return {
        "labels": list(task.labels),
        "command": request.command,
        "start": request.from_,
        "start_model": None if start.found is None else str(start.found.source),
        "bert": None if start.bert is None else start.bert.spec,
        **({"encoder_weights": _encoder_weights(request, start)} if request.end_to_end else {}),
        "recipe": request.recipe,
        "store": str(stores[0].path) if stores else None,
        "annotated_store": request.annotated_store,
        "photos": request.photos,
        "data": str(request.data),
        "trained_groups": len(data.train.groups),
        "notes": list(notes),
        "classes": digest_of_classes(stores[0]) if stores else None,
        "features": [each.fingerprint.to_json() for each in stores],
        "torch": torch.__version__,
    }


def _encoder_weights(request: FinetuneRequest, start: TaskStart) -> str:
    """Start of the region encoder: the folder of a run, or a file."""
    return str(start.source) if start.encoder is not None else chosen_encoder(request).weights


def digest_of_labels(labels: Sequence[str]) -> str:
    """SHA-256 (hex) of labels in their order; "" for none."""
    return hashlib.sha256(json.dumps(list(labels)).encode()).hexdigest() if labels else ""


def _digest_of_groups(groups: Iterable[TaskGroup]) -> str:
    """SHA-256 (hex) of the training groups: ids, images, texts and targets."""
    found = hashlib.sha256()
    for group in groups:
        texts = [[part.words for part in row.parts] for row in group.rows]
        found.update(repr((group.id, group.images, texts, group.target)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()
