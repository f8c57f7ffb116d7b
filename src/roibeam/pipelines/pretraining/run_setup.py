"""Setup of a pre-training run: its folder, tokenizer and seed, its first batch, and the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from roibeam.extraction.training.batch_losses import DetectorHeads
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.analysis.evaluation.measures import ALL, NONE, count_words, words_alone
from roibeam.pipelines.common.compute import is_main_process, num_processes
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.statistics.verdict import Judged, with_words_alone
from roibeam.pipelines.data.batches.image_batch import PhotoOrReason, batch_photos, stored_photos
from roibeam.pipelines.data.captions.captioned_store import JoinedSource
from roibeam.pipelines.data.image_identity import Key
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.pretraining.batch_page import InspectedBatch, write_batch_page
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import ModelChoice, check_system
from roibeam.pipelines.pretraining.task import BudgetedTask, RowsTask
from roibeam.pipelines.training.encoder_change import EncoderChange
from roibeam.pipelines.training.hooks import RunResult, TrainResult, write_results
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.model_files.model_start import check_words_of_bert
from roibeam.pipelines.training.model_files.provenance import check_tokenizer, trained_with
from roibeam.pipelines.training.model_files.tokenizer import (
    MADE_FROM_CAPTIONS,
    CaptionTokenizer,
    load_tokenizer,
    unknown_notes,
)
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME, check_run_folder, saved_config
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary
from roibeam.pipelines.training.run_folder.training_data import (
    read_word_counts,
    write_trained_images,
    write_word_counts,
)
from roibeam.pipelines.training.train_config import Resume, TrainConfig

logger = logging.getLogger(__name__)

AnyTask = RowsTask | EndToEndTask


@dataclass(frozen=True, eq=False)
class RunSettings:
    """Training settings of a run of any model.

    Attributes:
        train_config: or a function that makes it from the number of captions, for runs that count in epochs.
        data, sampling: how samples are made and batched; None for the defaults of the system's own class.
        inspect_rows: number of rows of the first batch to write to batch.html in the run folder, before any step.
        resume, stop_at_step: see `train`.
    """

    train_config: TrainConfig | Callable[[int], TrainConfig]
    data: DataConfig = field(default_factory=DataConfig)
    sampling: Any = None
    inspect_rows: int = 0
    resume: Resume = False
    stop_at_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class PretrainResult(RunResult):
    """
    Attributes:
        sources: facts of each store and its captions.
        num_classes, vocab_size: C and V; ln(C + 1) and ln(V) are the losses of a model that knows nothing. C is 0 for
            a run without region classes.
        asked: data of the evaluation, for people.
        left_out: end to end, ids of images whose photo could not be used, each with the reason, as far as this process
            met them.
        detector: content of the run folder's detector.json; None if no detector was evaluated, or not by this process.
    """

    sources: tuple[JoinedSource, ...]
    num_classes: int
    vocab_size: int
    asked: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    detector: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "device": self.training.device,
            "captions": sum(one.join.joined for one in self.sources),
            "sources": [one.to_json() for one in self.sources],
            "left_out_photos": dict(self.left_out),
            "vocabulary": self.vocab_size,
            "num_classes": self.num_classes,
            "ended_early": self.training.ended_early,
            "best": None if self.training.best is None else str(self.training.best),
            "evaluated_on": self.asked,
            "detector": self.detector,
        }


@dataclass(frozen=True, eq=False)
class RunModel:
    """The model of a run, with the words and rules of its samples.

    Attributes:
        num_classes: foreground classes of the detector that the rules know; 0 if they use none.
        joint, heads: end to end, the model with its encoder, and the detector's heads if they are trained or evaluated.
        notes: published objectives that are left out, and why.
    """

    model: Any
    tokenizer: CaptionTokenizer
    sampler: Any
    num_classes: int
    seed: int
    joint: EndToEndModel | None = None
    heads: DetectorHeads | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunSetup:
    """A run's folder, settings and choice of a model; each method is a step that all runs have."""

    run_dir: Path
    settings: RunSettings
    choice: ModelChoice

    @classmethod
    def opened(cls, run_dir: Path, settings: RunSettings, choice: ModelChoice) -> RunSetup:
        """The setup, with the sampling of the chosen system by default."""
        run_dir = Path(run_dir)
        settings = replace(settings, sampling=settings.sampling or choice.system.sampling())
        check_run_folder(run_dir, resume=settings.resume)
        if choice.start is not None:
            check_system(choice.start, choice.system)
        return cls(run_dir, settings, choice)

    def train_config(self, num_samples: int) -> TrainConfig:
        """Training settings for a number of captions, or lines of text."""
        given = self.settings.train_config
        return given if isinstance(given, TrainConfig) else given(num_samples)

    @waiting("making the vocabulary")
    def tokenizer(self, texts: Sequence[tuple[str, Sequence[str]]]) -> tuple[CaptionTokenizer, list[str]]:
        """The tokenizer that a resumed run saved, else that of `load_tokenizer` for the choice and `texts` (source and
        texts), saved there; and notes of words that it does not know, which are logged. Raises ValueError if it has
        other words than the model or BERT to start from or, in a new run, than most of the texts; or if it would be
        made anew although the words of the start are unknown."""
        saved = self.run_dir / "tokenizer"
        goes_on = bool(self.settings.resume) and saved.is_dir()
        if goes_on:
            if (self.run_dir / CONFIG_NAME).exists():
                given, own = self.choice.tokenizer_spec, saved_config(self.run_dir)["recorded"]["tokenizer_spec"]
                if own != given:
                    logger.warning("the run goes on with its own tokenizer, of %s; %s is not read", own, given)
            tokenizer = load_tokenizer(str(saved))
        else:
            tokenizer = self._new_tokenizer(chain.from_iterable(each for _, each in texts))
        unknown = [note for where, each in texts for note in unknown_notes(tokenizer, where, each, stops=not goes_on)]
        log_notes(unknown)
        if not goes_on and is_main_process():
            tokenizer.save(saved, of_run=True)
        return tokenizer, unknown

    def _new_tokenizer(self, texts: Iterable[str]) -> CaptionTokenizer:
        spec, start, bert = self.choice.tokenizer_spec, self.choice.start, self.choice.bert
        learned = None if start is None else trained_with(start).tokenizer
        if start is not None and learned is None and spec == MADE_FROM_CAPTIONS:
            raise ValueError(
                f"--tokenizer is missing: {start.source} has none beside it, and pieces made from these captions would "
                f"be other words to it; name the one it was trained with"
            )
        tokenizer = load_tokenizer(spec, texts)
        if start is not None:
            check_tokenizer(start, tokenizer)
        elif bert is not None and spec != bert.spec:
            check_words_of_bert(bert, tokenizer)
        return tokenizer

    def note_trained_images(self, keys: Iterable[Key]) -> None:
        """Writes the identities of images that are trained on, with those of the run that this one continues."""
        if is_main_process():
            start = self.choice.start
            earlier = None if start is None or start.tokenizer is None else start.tokenizer.parent
            write_trained_images(self.run_dir, keys, before=earlier)

    def described(
        self, task: AnyTask, made: RunModel, *, data: Mapping[str, Any], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Settings that must match on resume, for any data; `data` and `sampling` are those that change what is
        trained."""
        return {
            "model": task.model_config(),
            "data": data,
            "sampling": sampling,
            "num_classes": made.num_classes,
            "tokenizer": made.tokenizer.digest,
        }

    def write_first_batch(
        self,
        task: AnyTask,
        made: RunModel,
        config: TrainConfig,
        stores: Sequence[FeatureStore] = (),
        change: EncoderChange | None = None,
    ) -> None:
        """Writes batch.html, if requested, and end to end, in the main process, the input of the encoder (`change`).
        The first of the training stores names the detector's classes."""
        rows, encoder_looks = self.settings.inspect_rows, change is not None and change.needs_batch
        if not is_main_process() or not (rows or encoder_looks):
            return
        if isinstance(task, BudgetedTask):
            step_samples = task.batch_size * config.accumulation * num_processes()
            first: Any = next(task.steps(0, step_samples=step_samples, rank=0, num_ranks=num_processes()))[0]
        else:
            first = next(task.batches(0, rank=0, num_ranks=1))
        if encoder_looks and change is not None and isinstance(first, EndToEndBatch):
            names = first.rows.sample_ids
            stored = [next((store.get(name) for store in stores if name in store), None) for name in names]
            boxes = [None if record is None else torch.from_numpy(record.boxes) for record in stored]
            change.before(first.rows, first.images, names, boxes)
        if rows:
            as_read = isinstance(first, EndToEndBatch)
            displayed = first.rows if as_read else first
            layout = self.choice.system.layout(made.model.config)
            banner = next(filter(None, (warning_of_store(store.manifest) for store in stores)), None)
            photos = _first_photos(first, made, stores, min(rows, displayed.batch_size))
            inspected = InspectedBatch(displayed, rows, layout, task.counts(first), photos, banner, as_read)
            classes = stores[0].vocabulary["classes"] if stores else None
            write_batch_page(self.run_dir, inspected, made.tokenizer, Names(classes or ()))

    def train(
        self,
        task: AnyTask,
        config: TrainConfig,
        *,
        description: Mapping[str, Any],
        recorded: Mapping[str, Any],
        defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> TrainResult:
        """See `train`."""
        return train(
            task,
            config,
            self.run_dir,
            description=description,
            defaults=defaults,
            recorded={**recorded, **self.choice.recorded(), "torch": torch.__version__},
            resume=self.settings.resume,
            stop_at_step=self.settings.stop_at_step,
        )

    def write_results(
        self,
        training: TrainResult,
        evaluation: Judged,
        task: AnyTask,
        made: RunModel,
        texts: Sequence[Sequence[str]],
        *,
        of: str,
        held_out: bool,
        **facts: Any,
    ) -> PretrainResult:
        """Writes the results of the last evaluation beside chance and words alone, and the run's page with them; the
        figures have words alone in the main process. `facts` are further fields of the result.

        Args:
            task: that was evaluated. `of`: its data, for people.
            texts: that the run was trained on, source by source.
            held_out: whether the run was not trained on these data.
        """
        figures = evaluation.figures
        if is_main_process():
            figures = with_words_alone(figures, self._words_alone(task, made, texts, held_out=held_out))
            summary = TrainingSummary.of_figures(figures, system=self.choice.system.title, asked=of, held_out=held_out)
            write_results(self.run_dir, training, summary)
        return PretrainResult(
            run_dir=self.run_dir,
            num_classes=made.num_classes,
            vocab_size=made.tokenizer.vocab_size,
            training=training,
            figures=figures,
            asked=of,
            **facts,
        )

    @waiting("counting neighbouring words")
    def _words_alone(
        self, task: AnyTask, made: RunModel, texts: Sequence[Sequence[str]], *, held_out: bool
    ) -> dict[str, float]:
        """See `words_alone`; a run counts once."""
        hidden = task.hidden_words
        if not hidden:
            return {}
        try:
            counts = read_word_counts(self.run_dir)
        except ValueError as error:
            counts = None
            logger.warning("%s", error)
        if counts is None:
            counts = count_words(texts, made.tokenizer, seed=made.seed)
            write_word_counts(self.run_dir, counts)
        return words_alone(hidden, counts, made.tokenizer, counted_ids=NONE if held_out else ALL)


def log_notes(notes: Iterable[str]) -> None:
    for note in notes if is_main_process() else ():
        logger.warning("%s", note)


def _first_photos(
    first: VLBatch | EndToEndBatch, made: RunModel, stores: Sequence[FeatureStore], rows: int
) -> dict[tuple[int, int], PhotoOrReason]:
    """Photos of the displayed rows, by row and image of the row."""
    if isinstance(first, EndToEndBatch):
        assert made.joint is not None
        conventions = region_encoder_of(made.joint).conventions
        return {(row, 0): photo for row, photo in batch_photos(first.rows, first.images, conventions).items()}
    ids = first.sample_ids[:rows]
    found = stored_photos(stores, dict.fromkeys(ids))
    return {(row, 0): found[image_id] for row, image_id in enumerate(ids) if image_id in found}
