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
from typing import Any

import torch

from roibeam.features.reading.temporary_copy import unfinished_lines
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.region_record import BOX_NUMBERS
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.statistics.verdict import Judged, judged_line
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.requests import FINETUNING, FinetuneRequest
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.finetune_request import resolve_encoder
from roibeam.pipelines.finetuning.run.finetune_settings import (
    EncoderSections,
    FinetuneConfig,
    check_finetune,
    config_of,
    evaluation_interval,
    evaluation_words,
    published_encoder,
    recipe_of,
    resume_notes,
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
from roibeam.pipelines.finetuning.run.task_data import (
    StorePair,
    TaskData,
    check_annotated,
    guarded_data,
    joined_data,
    opened_store,
)
from roibeam.pipelines.finetuning.run.task_start import TaskStart, start_of, task_encoder
from roibeam.pipelines.finetuning.scored_tasks import digest_of_task, is_own, task_name
from roibeam.pipelines.finetuning.systems.options import UNIFORM_HEAD, WORDS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import DownstreamTask, check_best_by
from roibeam.pipelines.finetuning.tasks.named_tasks import task_named
from roibeam.pipelines.training.encoder_change import EncoderChange
from roibeam.pipelines.training.hooks import RunResult, TrainResult, write_results
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.model_files.encoder_settings import chosen_encoder
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
from roibeam.pipelines.training.run_folder.files import latest_checkpoint
from roibeam.pipelines.training.run_folder.folder import check_run_folder, defaults_of
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary
from roibeam.pipelines.training.run_folder.training_data import write_trained_images
from roibeam.pipelines.training.train_config import Resume, TrainConfig

logger = logging.getLogger(__name__)

_QUESTION = (
    "The task's own measures, as roibeam score gives them. Chance is what a model reaches that always predicts the "
    "commonest answer, or chooses among the candidates by lot."
)


@dataclass(frozen=True, kw_only=True)
class FinetuneResult(RunResult):
    """
    Attributes:
        figures: the task's measures on the validation split, 0..1, at the end, or of the best checkpoint by
            `train.best_by`, each beside chance; empty where nothing was judged.
        last_evaluation: measures at the end.
        main: name of the main one; "" for none.
        asked: number of evaluated groups.
    """

    evaluated_step: int
    last_evaluation: Mapping[str, float | None]
    main: str
    asked: int

    @property
    def is_of_best(self) -> bool:
        """Whether `evaluation` is of a checkpoint that `train.best_by` chose."""
        return self.training.best is not None

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "evaluated_step": self.evaluated_step,
            "last_evaluation": dict(self.last_evaluation),
            "main": self.main,
            "evaluated_on": self.asked,
        }


def run_finetuning(request: FinetuneRequest) -> FinetuneResult:
    """Runs fine-tuning with one seed, and writes the run folder. Raises ValueError for a request that does not fit; the
    message names the command's option and what to do."""
    check_finetune(request)
    resume = request.resume_choice
    if is_main_process():
        check_run_folder(request.out, resume=resume)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    recipe, named = recipe_of(request), task_named(request.task)
    if request.end_to_end and recipe is not None:
        request = resolve_encoder(request, request.from_, published_encoder(request, recipe))
    config = config_of(request, named.options, recipe)
    start = start_of(request, recipe)
    with waiting("reading the task"):
        task = named.open(request.data, config.task, None)
    check_annotated(task, request.annotated_store, from_photos=request.end_to_end)
    if start.found is not None and task.input_classes is not None:
        check_object_classes(start.found, task.input_classes.names)
    with opened_store(request.store) as store, opened_store(request.annotated_store) as annotated:
        stores = [each for each in (store, annotated) if each is not None]
        for line in unfinished_lines(stores) if is_main_process() else ():  # it may be why images are missing
            logger.warning("%s", line)
        read = [] if request.end_to_end or start.found is None else stores  # photos take its boxes alone
        choices = [note for each in read for note in (check_feature_space(start.found, each) if start.found else [])]
        source = store if annotated is None or store is None else StorePair(store, annotated)
        data = joined_data(task, store, source, request.min_match)
        leak_notes: list[str] = []
        if store is not None:
            data, leak_notes = guarded_data(request, task, store, data, start, allowed=config.data.shared_images)
        resumed = resume_notes(request, named.options, recipe)
        from_recipe = [] if recipe is None else _recipe_notes(recipe, request, start, task, stores)
        notes = [*resumed, *choices, *from_recipe, *data.notes, *leak_notes]
        for note in notes:
            logger.warning("%s", note)
        groups = len(data.train.groups)
        if task.turns is not None and task.updates == "step":  # a step has a batch of each problem
            groups //= len(set(map(task.turns, data.train.groups)))
        step_groups = config.step_groups
        steps = steps_for(recipe, request, groups, step_groups)
        if request.epochs is not None and steps is not None:
            words = f"{request.epochs:g} epochs of {plural(groups, 'group')} are {plural(steps, 'step')}"
            logger.info("%s", f"{words} of {step_groups:,}")
        judged = min(len(data.evaluated), config.data.validation_groups or len(data.evaluated))
        config = config_of(
            request,
            named.options,
            recipe,
            steps=steps,
            evaluate_every=evaluation_interval(steps or config.train.steps, step_groups, judged),
            whole_image=start.system.photo_whole_image,
        )
        run = _Run(request, resume, config, start, task, source, data)
        tokenizer, unknown = run.tokenizer()
        return run.with_draws().trained(tokenizer, notes, unknown)


def _recipe_notes(
    recipe: TaskRecipe, request: FinetuneRequest, start: TaskStart, task: DownstreamTask, stores: Sequence[FeatureStore]
) -> list[str]:
    """Notes on a start, and on stores, that differ from those of the recipe; a toy's stores always differ."""
    notes: list[str | None] = []
    if recipe.features is not None and not request.toy:
        notes += [
            features.note(str(request.recipe), str(each.path), each.fingerprint, boxes_alone=request.end_to_end)
            for each, features in zip(stores, (recipe.features, recipe.features.of_annotated), strict=False)
            if features is not None
        ]
    notes += recipe.start_notes(
        pretrained=start.found is not None,
        from_bert=request.from_bert is not None,
        end_to_end=request.end_to_end,
        alone=task.turns is None,
    )
    return [note for note in notes if note is not None]


@dataclass(frozen=True, eq=False)
class _Run:
    """A run whose settings are known, and whose data are read and joined with the stores."""

    request: FinetuneRequest
    resume: Resume
    config: FinetuneConfig
    start: TaskStart
    task: DownstreamTask
    source: FeatureStore | StorePair | None
    data: TaskData

    @property
    def stores(self) -> list[FeatureStore]:
        both = (self.source.store, self.source.second) if isinstance(self.source, StorePair) else (self.source,)
        return [each for each in both if each is not None]

    @property
    def output(self) -> OutputSpec:
        task = self.task
        return OutputSpec(task.form, len(task.labels) or 1, task.num_images, task.whole_image, task.num_heads)

    def tokenizer(self) -> tuple[CaptionTokenizer, list[str]]:
        """The tokenizer: saved by the resumed run, else of the start, else built from the texts; and warnings about
        unknown words. Raises ValueError when a new run's tokenizer does not know most of the words."""
        saved, train = self.request.out / "tokenizer", self.data.train.groups
        goes_on = bool(self.resume) and saved.is_dir()
        if goes_on:
            tokenizer = load_tokenizer(str(saved))
        else:
            tokenizer = self.start.tokenizer(self.request.tokenizer, _texts(train))
        unknown = []
        for what, groups in (("training texts", train), ("validation texts", self.data.evaluated)):
            texts = list(_texts(evenly(groups, MOST_TEXTS)))
            unknown += unknown_notes(tokenizer, what, texts, stops=groups is train and not goes_on)
        return tokenizer, unknown

    def with_draws(self) -> _Run:
        """The run whose task draws the rows of training groups, and whose validation groups have their drawn rows."""
        if self.task.drawn_from is None or self.source is None:
            return self
        data, drawn_from = self.data, self.task.drawn_from
        with waiting("looking for distractors"):
            task = replace(self.task, drawn=drawn_from(data.train.groups, self.source, self.request.out))
        if data.validation is not None:
            groups = data.validation.groups
            drawn = drawn_once(groups, drawn_from(groups, self.source, None))
            data = replace(data, validation=replace(data.validation, groups=drawn))
        return replace(self, task=task, data=data)

    def trained(self, tokenizer: CaptionTokenizer, notes: Sequence[str], unknown: Sequence[str]) -> FinetuneResult:
        """Trains.

        Args:
            unknown: of `tokenizer`.
        """
        request, config, task, data = self.request, self.config, self.task, self.data
        train_config, judged = self._validation_plan()
        loss = loss_named(task.form, task.loss, task.region_targets, task.label_weights)
        torch.manual_seed(train_config.seed)
        with waiting("building the model"):
            network = self._network(tokenizer)
            notes = [*notes, *self._init_head_and_dropout(network, tokenizer)]
        batches = GroupBatches(
            self.start.system, network.encoder_config, tokenizer, config.layout, self.output, self.source, loss=loss,
            task=task,
        )  # fmt: skip
        if config.from_photos is not None:
            network, photos = self._from_photos(network, config.from_photos)
            batches = batches.with_photos(photos)
        batches.check(data.train.groups[0])
        with waiting("looking for boxes"):
            batches.check_boxes([*data.train.groups, *data.evaluated])
        with waiting("looking for long texts"):
            cuts = [
                *unknown,
                *batches.notes_of_cuts(data.train.groups, "training"),
                *batches.notes_of_cuts(data.evaluated, "validation"),
            ]
        for note in cuts:
            logger.warning("%s", note)
        notes = [*notes, *cuts]
        if is_main_process():
            if not (self.resume and (request.out / "tokenizer").is_dir()):
                tokenizer.save(request.out / "tokenizer", of_run=True)
            keys = (key for image in data.train.image_ids() for key in data.names.keys(image))
            write_trained_images(request.out, keys, before=self.start.run)
        trained = self._train_task(network, batches, loss, train_config.seed)
        moved = self._encoder_change(network, trained)
        of_model = defaults_of(network.encoder_config)
        result = train(
            trained,
            train_config,
            request.out,
            description={"model": network.described, **self._described(tokenizer)},
            defaults={
                **{name: defaults_of(getattr(config, name)) for name in ("data", "layout", "head")},
                "task_options": defaults_of(config.task),
                # At each place where a network's description may hold its model's configuration.
                "model": {**of_model, "model": {**of_model, "model": of_model}},
            },
            recorded={**self._recorded(notes), "start_tells_images": self.start.knows_images},
            resume=self.resume,
        )
        evaluation = result.evaluation
        if evaluation is None:
            with waiting("evaluating"):
                evaluation = trained.evaluate()
        encoder = None if moved is None else moved.after()
        return replace(_result(request, result, evaluation, len(judged), notes), encoder=encoder)

    def _validation_plan(self) -> tuple[TrainConfig, Sequence[TaskGroup]]:
        """The training settings, and the groups that evaluations predict; logs what these will cost."""
        every, run = self.data.evaluated, self.request.out
        judged = every[: self.config.data.validation_groups or None]
        if not judged:
            logger.info("no evaluations: beside %s no validation data are left", self.task.train)
            return without_evaluations(self.config.train), judged
        config = with_recorded_evaluation(self.config.train, run, self.request.settings)
        check_best_by(self.task, judged, config.best_by)
        if config.evaluate_every and latest_checkpoint(run) is None:
            logger.info("%s", evaluation_words(config, self.config.step_groups, len(judged), len(every)))
        return config, judged

    def _network(self, tokenizer: CaptionTokenizer) -> TaskNetwork:
        task, photos = self.task, self.config.from_photos
        width = self.stores[0].feature_dim if self.stores else None
        if photos is not None:
            width = photos.detector.feature_dim
        if width is not None:
            width += BOX_NUMBERS * self.config.layout.box_numbers
        return started_network(
            self.start.system,
            self.start.model(vocab_size=tokenizer.vocab_size, width=width),
            self.output,
            self.config.head.kind,
            source=self.start.source,
            beside=task.beside,
            num_input_classes=0 if task.input_classes is None else task.input_classes.num_classes,
            grounding=task.grounding,
        )

    def _init_head_and_dropout(self, network: TaskNetwork, tokenizer: CaptionTokenizer) -> list[str]:
        """Sets dropout and initialises the head. Returns notes if the start was fine-tuned."""
        labels, head, notes = self.task.labels, self.config.head, list[str]()
        if self.config.model.dropout is not None:
            set_dropout(network, self.config.model.dropout)
        heads = self.output.num_heads
        if heads > 1 and head.kind != UNIFORM_HEAD:
            notes = [f"heads {heads} change nothing: the head of the release is one; add --set head.kind=ours"]
            logger.warning("%s", notes[0])
        first = self.start.first
        if first is not None:
            digest, keeps = digest_of_labels(labels), head.start != WORDS
            notes.append(first.go_on(network, self.start.system, self.output, digest, keeps=keeps))
            logger.info("%s", notes[-1])
        if head.start == WORDS:
            start_from_words(network, labels, tokenizer)
        return notes

    def _from_photos(self, network: TaskNetwork, sections: EncoderSections) -> tuple[TaskNetwork, GroupPhotos]:
        """The network with its encoder, and the photos that this one reads."""
        request, data, choices = self.request, self.data, sections.end_to_end
        with waiting("building the region encoder"):
            encoder = task_encoder(request, sections.detector, sections.encoder, self.start.encoder)
        images = dict.fromkeys([*data.train.image_ids(), *(data.validation.image_ids() if data.validation else ())])
        with waiting("looking for the photos"):
            photos = GroupPhotos(
                self.stores[0], images, request.photos, encoder, choices, sections.photos, outlines=self.task.outlines
            )
        return with_encoder(network, encoder, choices), photos

    def _train_task(
        self, network: TaskNetwork, batches: GroupBatches, loss: TaskLoss, seed: int
    ) -> GroupTask | TurnsTask:
        """The `TrainTask`: one problem, or several in turn, each in an order of its own."""
        kind: Callable[..., GroupTask] = GroupTask
        if self.config.from_photos is not None:
            kind = partial(PhotoTask, encoder_scale=self.config.from_photos.encoder.learning_rate_scale)
        made = partial(kind, network, batches, self.task, self.output, loss, data=self.config.data)
        train, evaluated, turns = self.data.train.groups, self.data.evaluated, self.task.turns
        if turns is None:
            return made(train, evaluated, seed=seed)
        problems: dict[str, list[TaskGroup]] = {}
        for group in train:
            problems.setdefault(turns(group), []).append(group)
        tasks = {
            name: made(groups, () if number else evaluated, seed=(seed, number))
            for number, (name, groups) in enumerate(problems.items())
        }
        return TurnsTask(tasks, self.task.updates, self.task.loss_scales)

    def _encoder_change(self, network: TaskNetwork, trained: GroupTask | TurnsTask) -> EncoderChange | None:
        """Record of how far the encoder moves, end to end in the main process; a new run looks at its first batch."""
        if not self.request.end_to_end or not is_main_process():
            return None
        joint: Any = network.module
        change = EncoderChange(self.request.out, joint, self._encoder_weights)
        if change.needs_batch:
            photos: Any = trained
            beside = self.task.beside
            change.before(*photos.first_photos(), masks=beside is not None and beside.hidden_regions > 0)
        return change

    def _described(self, tokenizer: CaptionTokenizer) -> dict[str, Any]:
        """Settings that must match on resume, and that predicting needs."""
        name, task, config, stores = self.request.task, self.task, self.config, self.stores
        kept = {each: value for each, value in asdict(config.data).items() if each != "validation_groups"}
        # The origin of imported features is unknown: their bytes have to do.
        imported = [each for each in stores if each.fingerprint.feature_space.startswith(IMPORTED_PREFIX)]
        photos = config.from_photos
        return {
            "kind": FINETUNING,
            "task": task_name(name),
            **({"task_file": digest_of_task(name)} if is_own(name) else {}),
            "task_options": asdict(config.task),
            "form": task.form,
            "num_images": task.num_images,
            "labels": digest_of_labels(task.labels),
            "system": self.start.system.name,
            "head": asdict(config.head),
            **config.model.described(),
            "layout": asdict(config.layout),
            "data": kept,
            "groups": _digest_of_groups(self.data.train.groups),
            "tokenizer": tokenizer.digest,
            "feature_space": stores[0].fingerprint.feature_space if stores else None,
            **({"imported_features": [each.manifest.content_digest for each in imported]} if imported else {}),
            **({} if photos is None else {"photos": photos.photos.described(), **photos.encoder.described()}),
        }

    def _recorded(self, notes: Sequence[str]) -> dict[str, Any]:
        """Facts that may differ on resume."""
        request, start, stores = self.request, self.start, self.stores
        return {
            "labels": list(self.task.labels),
            "command": request.command,
            "start": request.from_,
            "start_model": None if start.found is None else str(start.found.source),
            "bert": None if start.bert is None else start.bert.spec,
            **({"encoder_weights": self._encoder_weights} if request.end_to_end else {}),
            "recipe": request.recipe,
            "toy": request.toy,
            "store": str(stores[0].path) if stores else None,
            "annotated_store": request.annotated_store,
            "photos": request.photos,
            "data": str(request.data),
            "trained_groups": len(self.data.train.groups),
            "notes": list(notes),
            "classes": digest_of_classes(stores[0]) if stores else None,
            "features": [each.fingerprint.to_json() for each in stores],
            "torch": torch.__version__,
        }

    @property
    def _encoder_weights(self) -> str:
        """Start of the region encoder: the folder of a run, or a file."""
        return str(self.start.source if self.start.encoder is not None else chosen_encoder(self.request).weights)


def _result(
    request: FinetuneRequest, training: TrainResult, last: Judged, evaluated: int, notes: Sequence[str]
) -> FinetuneResult:
    """Result of a run: evaluation of the best checkpoint (`train.best_by`), else of the last; also on its page."""
    best, figures, step = training.best_evaluation, last.figures, training.step
    if best is not None and best["step"] != step:
        step = best["step"]
        kept = zip(judged_line(best, last).figures, last.figures, strict=True)
        # All evaluations have the same groups, so that chance, which old lines lack, is that of the last.
        figures = tuple(replace(figure, chance=each.chance, items=each.items) for figure, each in kept)
    if is_main_process() and training.last:
        words = f"{evaluated:,} of the validation split" + (f", the best checkpoint, step {step:,}" if best else "")
        question, recipe = _QUESTION, None if request.toy else recipe_of(request)
        if recipe is not None and recipe.figures:
            printed = "; ".join(f"{each.printed} ({each.column}; {each.where})" for each in recipe.figures)
            question = f"{question} The paper has {printed}."
        summary = TrainingSummary.of_figures(figures, system="", asked=words, held_out=True, question=question)
        write_results(request.out, training, summary if figures else None)
    return FinetuneResult(
        run_dir=request.out,
        training=training,
        figures=figures,
        evaluated_step=step,
        last_evaluation=last,
        main=next(iter(last), ""),
        asked=evaluated,
        notes=tuple(notes),
    )


def _texts(groups: Iterable[TaskGroup]) -> Iterator[str]:
    return (part.text for group in groups for row in group.rows for part in row.parts)


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
