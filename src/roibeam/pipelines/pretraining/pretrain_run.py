"""A pre-training run: a store and captions, or several, in, a run folder out.

caption rows x store -> join -> leak guard -> corpus -> a system's samples -> VLBatch -> model -> losses -> the loop
end to end: samples -> their photos -> masked pixels -> region encoder -> model, on the same loop
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.model.common.bert import BertSizes
from roibeam.pipelines.inputs.captioned.captioned_store import (
    CaptionedStore,
    JoinedSource,
    LeakGuard,
    digest_of_captions,
    known_classes,
)
from roibeam.pipelines.inputs.record_photos import RecordPhotos
from roibeam.pipelines.inputs.region_names import Names
from roibeam.pipelines.model_files.bert_start import PublishedBert
from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.model_files.trained_with import check_feature_space, digest_of_classes
from roibeam.pipelines.pretraining.batch_page import InspectedBatch, write_batch_page
from roibeam.pipelines.pretraining.budgeted_task import BudgetedTask
from roibeam.pipelines.pretraining.data.row_lengths import RowLengths, count_regions
from roibeam.pipelines.pretraining.data.run_tokenizer import tokenizer_of_run
from roibeam.pipelines.pretraining.end_to_end.detector_change import DetectorChange
from roibeam.pipelines.pretraining.end_to_end.encoder_choice import EndToEnd, row_sizes
from roibeam.pipelines.pretraining.end_to_end.end_to_end_task import EndToEndBatch, EndToEndTask
from roibeam.pipelines.pretraining.run_data import corpus_of, gather
from roibeam.pipelines.pretraining.start import check_system, continued_model, new_model
from roibeam.pipelines.pretraining.systems import SYSTEMS, System
from roibeam.pipelines.pretraining.task import DataConfig, PretrainTask
from roibeam.pipelines.pretraining.validation import Search, Validation, told
from roibeam.pipelines.training.checkpoint import checkpoint_step
from roibeam.pipelines.training.loop import TrainResult, is_main_process, num_processes, train
from roibeam.pipelines.training.run_folder.folder import Resume, check_run_folder, defaults_of
from roibeam.pipelines.training.run_folder.trained_images import write_trained_images
from roibeam.pipelines.training.run_folder.training_page import write_training_page
from roibeam.pipelines.training.train_config import TrainConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PretrainResult:
    """Attributes:
    run_dir: the run folder: config.json, log.jsonl, tokenizer/, trained_images.npy, checkpoints/.
    sources: what each store and its captions turned out to be.
    notes: what was left out of captions and text, and what the system treats otherwise.
    num_classes, vocab_size: C and V; ln(C + 1) and ln(V) are the losses of a model that knows nothing. C is 0 for a
        system that does not ask for it.
    training: where the loop ended.
    evaluation: of `evaluate` on the final weights.
    asked: what it was asked about, for people.
    left_out: end to end, ids of images whose photo could not be used, each with why, as far as this process met them.
    detector: what detector.json of the run folder holds; None where no detector was judged, or not by this process.
    """

    run_dir: Path
    sources: tuple[JoinedSource, ...]
    notes: list[str]
    num_classes: int
    vocab_size: int
    training: TrainResult
    evaluation: dict[str, float | None]
    asked: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    detector: Mapping[str, Any] | None = None


def pretrain(
    sources: Sequence[CaptionedStore],
    run_dir: Path,
    *,
    train_config: TrainConfig | Callable[[int], TrainConfig],
    system: System = SYSTEMS["vlbert"],
    build_config: Callable[..., BertSizes] | None = None,
    data: DataConfig | None = None,
    sampling: Any = None,
    tokenizer_spec: str = "captions",
    model_overrides: Mapping[str, Any] | None = None,
    bert: PublishedBert | None = None,
    start: ModelCheckpoint | None = None,
    background_first: bool | None = None,
    num_classes: int | None = None,
    text_files: Sequence[Path] = (),
    guard: LeakGuard | None = None,
    end_to_end: EndToEnd | None = None,
    validation: CaptionedStore | None = None,
    inspect_rows: int = 0,
    resume: Resume = False,
    stop_at_step: int | None = None,
) -> PretrainResult:
    """Pre-trains a model on stores with captions, and writes a run folder.

    Args:
        sources: one, or several of one feature space, in the order that a resumed run has too.
        tokenizer_spec: see `load_tokenizer`; a resumed run reads the tokenizer it saved.
        train_config: or what makes it from the number of captions, for runs that count in epochs.
        system: whose model and rules.
        build_config: makes the model's configuration from keyword fields; None for the system's small one. Vocabulary,
            feature width and region labels are filled in.
        data, sampling: how samples are made and batched; None for the defaults, `sampling` of the system's own class.
        model_overrides: further fields of the model configuration.
        bert: what the model starts from; its sizes take the place of the preset's (but see `System.as_deep_as_bert`).
        start: a trained model of the same system to start from, as stages do; its configuration takes the place of the
            preset's. Parts that `model_overrides` add are drawn anew, parts that they leave out are dropped.
        background_first: of `start`, see `continued_model`.
        num_classes: foreground classes of the detector; None takes the store's vocabulary.
        text_files: of a text corpus, for a system that reads text alone too; see `TextCorpus`.
        guard: what must not be trained on.
        end_to_end: trains through a region encoder, on photos; None trains on the stored features.
        validation: held-out captions that evaluations ask about; their images are not trained on. None takes the first
            captions that are trained on.
        inspect_rows: so many rows of the first batch are written to batch.html in the run folder, before any step.
        resume, stop_at_step: see `train`.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run_dir, data = Path(run_dir), data or DataConfig()
    sampling = sampling or system.sampling()
    check_run_folder(run_dir, resume=resume)
    if start is not None:
        check_system(start, system)
    read = gather(
        sources,
        system=system,
        sampling=sampling,
        data=data,
        text_files=text_files,
        guard=guard,
        end_to_end=end_to_end,
        validation=validation,
    )
    store, end_to_end = read.store, read.end_to_end
    if start is not None:
        check_feature_space(start, store)
    corpus = corpus_of(read.joined)
    if not isinstance(train_config, TrainConfig):
        train_config = train_config(len(corpus))
    texts = chain(read.captions(), read.lines or ())
    tokenizer = tokenizer_of_run(run_dir, tokenizer_spec, texts, start=start, resume=resume)
    if is_main_process():
        earlier = None if start is None or start.tokenizer is None else start.tokenizer.parent
        write_trained_images(run_dir, read.trained_ids(), before=earlier)
    first = corpus.record(0)
    if num_classes is None:
        num_classes = known_classes(store, first) if system.needs_classes else 0
    if num_classes is None:
        raise ValueError(
            f"store {store.path} holds neither class names nor class distributions; say how many foreground classes "
            f"its detector has (num_classes)"
        )
    if end_to_end is not None:
        end_to_end.check_width(first)
    torch.manual_seed(train_config.seed)
    if start is not None:
        model = continued_model(start, system, model_overrides or {}, background_first=background_first)
    else:
        width = first.features.shape[1]
        fields = {
            "region_feature_size": system.feature_width(sampling, width),
            **system.region_label_fields(num_classes, width),
            **((system.text_only_fields or {}) if text_files else {}),
            **(system.end_to_end_fields if end_to_end is not None else {}),
        }
        build = build_config or system.sizes["small"]
        model = new_model(
            system, build, fields, bert=bert, vocab_size=tokenizer.vocab_size, overrides=model_overrides or {}
        )
    model_config: Any = model.config
    sampler = system.sampler(sampling, tokenizer, model_config, num_classes=num_classes)
    joint, heads = (None, None) if end_to_end is None else end_to_end.build_joint(model, seed=train_config.seed)
    common: dict[str, Any] = {"pad_id": tokenizer.pad_id, "seed": train_config.seed, "lines": read.lines}

    def task_of(
        joined: Sequence[JoinedSource], photos: RecordPhotos | None, **others: Any
    ) -> PretrainTask | EndToEndTask:
        corpus, given = corpus_of(joined), {**common, **others}
        if joint is not None and photos is not None and end_to_end is not None:
            sizes = row_sizes(joined[0].store, joined[0].rows)
            return EndToEndTask(joint, corpus, sampler, photos, data, end_to_end.photos, row_sizes=sizes, **given)
        if not data.max_tokens:
            return PretrainTask(model, corpus, sampler, data, **given)
        lengths = RowLengths(corpus, count_regions((each.store, each.rows) for each in joined), tokenizer)
        return BudgetedTask(model, corpus, sampler, data, lengths=lengths, **given)

    only_here: dict[str, Any] = {}
    validated: PretrainTask | EndToEndTask | None = None
    if read.asked is not None:
        search = None
        if read.searched is not None:
            classes = known_classes(read.asked.store, read.searched.corpus.record(0))
            search = Search(model, tokenizer, classes, read.searched, data.batch_size, joint, read.asked_photos)
            search.check()
        validated = task_of([read.asked], read.asked_photos, lines=None)
        only_here["validation"] = Validation(validated, search)
    change: DetectorChange | None = None
    if end_to_end is None:
        only_here["weights"] = [each.weight for each in sources if each.weight is not None] or None
    else:
        only_here["labelled"] = end_to_end.labelled_stream(seed=train_config.seed)
    task = task_of(read.joined, read.photos, **only_here)
    if end_to_end is not None and joint is not None and heads is not None and is_main_process():
        change = end_to_end.detector_change(run_dir, joint, heads, on_cpu=train_config.device == "cpu")
    description = {
        "model": task.model_config(),
        # Which held-out captions are asked about is told by their digest; what is asked of them changes no weight.
        "data": {name: value for name, value in dataclasses.asdict(data).items() if not name.startswith("validation_")},
        "sampling": dataclasses.asdict(sampling),
        "num_classes": num_classes,
        "tokenizer": tokenizer.digest,
        "captions": digest_of_captions(each.rows for each in read.joined),
        "text_corpus": None if read.texts is None else read.texts.digest,
        "feature_space": store.fingerprint.feature_space,
    }
    # Of imported features nobody knows who made them: their bytes have to do.
    imported = [each.store for each in read.joined if each.store.fingerprint.feature_space.startswith(IMPORTED_PREFIX)]
    if imported:
        description["imported_features"] = [each.manifest.content_digest for each in imported]
    if read.asked is not None:
        description["validation"] = digest_of_captions([read.asked.rows])
    if len(read.joined) > 1:
        description["sources"] = [{"captions": len(each.rows), "weight": each.source.weight} for each in read.joined]
    recorded = {
        "sources": [each.to_json() for each in read.joined],
        "validation": None if read.asked is None else read.asked.to_json(),
        "notes": read.notes,
        "text_files": [str(file) for file in text_files],
        "classes": digest_of_classes(store),
        "tokenizer_spec": tokenizer_spec,
        "bert": None if bert is None else bert.spec,
        "start": None if start is None else str(start.source),
        "torch": torch.__version__,
    }
    if end_to_end is not None:
        description |= end_to_end.described()
        recorded |= end_to_end.recorded(read.missing)
    if inspect_rows and is_main_process():
        names, first_batch = Names(store.vocabulary["classes"] or ()), _first_batch(task, train_config.accumulation)
        shown = first_batch.rows if isinstance(first_batch, EndToEndBatch) else first_batch
        inspected = InspectedBatch(shown, inspect_rows, system.layout(model_config), task.counts(first_batch))
        write_batch_page(run_dir, inspected, tokenizer, names)
    if change is not None:
        change.before()
    training = train(
        task,
        train_config,
        run_dir,
        description=description,
        defaults={"data": defaults_of(data), "sampling": defaults_of(sampling)},
        recorded=recorded,
        resume=resume,
        stop_at_step=stop_at_step,
    )
    evaluation, detector = training.evaluation or task.evaluate(), None
    if change is not None:
        detector = change.after()
        write_training_page(run_dir, best_step=None if training.best is None else checkpoint_step(training.best))
    missing = dict(read.missing)
    for each in (task, validated):
        missing |= dict(each.skipped) if isinstance(each, EndToEndTask) else {}
    about = told(read.asked.rows) if read.asked is not None else "the first captions trained on, with other masks"
    return PretrainResult(
        run_dir=run_dir,
        sources=tuple(read.joined),
        notes=read.notes,
        num_classes=num_classes,
        vocab_size=tokenizer.vocab_size,
        training=training,
        evaluation=dict(evaluation),
        asked=about,
        left_out=missing,
        detector=detector,
    )


def _first_batch(task: PretrainTask | EndToEndTask, accumulation: int) -> Any:
    """The first that the main process trains on."""
    if isinstance(task, BudgetedTask):
        step_samples = task.batch_size * accumulation * num_processes()
        return next(task.steps(0, step_samples=step_samples, rank=0, num_ranks=num_processes()))[0]
    return next(task.batches(0, rank=0, num_ranks=1))
