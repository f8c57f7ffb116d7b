"""A pre-training run on text alone: a text corpus in, a run folder out; no store, no image.

lines -> a system's rows of text -> VLBatch -> model -> masked words -> the loop
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roibeam.model.common.bert import BertSizes
from roibeam.pipelines.inputs.region_names import Names
from roibeam.pipelines.model_files.bert_start import PublishedBert
from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.model_files.trained_with import TrainedWith, trained_with
from roibeam.pipelines.pretraining.batch_page import InspectedBatch, write_batch_page
from roibeam.pipelines.pretraining.data.run_tokenizer import tokenizer_of_run
from roibeam.pipelines.pretraining.pretrain_run import PretrainResult
from roibeam.pipelines.pretraining.samples.text_rows import TextCorpus
from roibeam.pipelines.pretraining.start import check_system, continued_model, new_model
from roibeam.pipelines.pretraining.systems import SYSTEMS, System
from roibeam.pipelines.pretraining.task import DataConfig, TextTask
from roibeam.pipelines.training.loop import is_main_process, train
from roibeam.pipelines.training.run_folder.folder import Resume, check_run_folder
from roibeam.pipelines.training.run_folder.trained_images import write_trained_images
from roibeam.pipelines.training.train_config import TrainConfig

logger = logging.getLogger(__name__)

_OF_IMAGES = (  # fields of `DataConfig`
    "share", "share_seed", "texts_per_caption", "max_tokens", "validation_captions", "validation_retrieval",
)  # fmt: skip


def pretrain_on_text(
    text_files: Sequence[Path],
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
    inspect_rows: int = 0,
    resume: Resume = False,
    stop_at_step: int | None = None,
) -> PretrainResult:
    """Pre-trains a model on the words of a text corpus, and writes a run folder.

    The parts of the model that see images are made and learn nothing; weight decay is theirs too. A run on images that
    goes on from this one has its feature width and region labels, so give those of its store (`model_overrides`).

    Args:
        text_files: see `TextCorpus`.
        train_config: or what makes it from the number of lines, each of which begins one row an epoch.
        data: `batch_size` counts rows.
        system, build_config, sampling, tokenizer_spec, model_overrides, bert, start, background_first, inspect_rows,
            resume, stop_at_step: as of `pretrain`.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run_dir, data = Path(run_dir), data or DataConfig()
    sampling = sampling or system.sampling()
    check_run_folder(run_dir, resume=resume)
    if start is not None:
        check_system(start, system)
    if system.text_only_fields is None:
        raise ValueError(f"{system.name} reads no text without images; name a --store, or train a VL-BERT")
    _check_read(data, "data", _OF_IMAGES)
    unread = (each.name for each in dataclasses.fields(sampling) if each.name not in system.text_only_sampling)
    _check_read(sampling, "sampling", unread)
    texts = TextCorpus(text_files)
    for note in texts.notes:
        logger.info("%s", note)
    if not isinstance(train_config, TrainConfig):
        train_config = train_config(len(texts.lines))
    tokenizer = tokenizer_of_run(run_dir, tokenizer_spec, texts.lines, start=start, resume=resume)
    if is_main_process():
        earlier = None if start is None or start.tokenizer is None else start.tokenizer.parent
        write_trained_images(run_dir, (), before=earlier)
    torch.manual_seed(train_config.seed)
    overrides = dict(model_overrides or {})
    # What a later stage on images is held against: features and classes are those of an earlier one.
    before = TrainedWith() if start is None else trained_with(start)
    if start is not None:
        fields = {**system.text_only_fields, **overrides}
        model = continued_model(start, system, fields, background_first=background_first)
    else:
        build = build_config or system.sizes["small"]
        model = new_model(
            system, build, system.text_only_fields, bert=bert, vocab_size=tokenizer.vocab_size, overrides=overrides
        )
    config: Any = model.config
    num_classes = config.num_region_labels - 1
    sampler: Any = system.sampler(sampling, tokenizer, config, num_classes=num_classes)
    task = TextTask(model, texts.lines, sampler, data, pad_id=tokenizer.pad_id, seed=train_config.seed)
    if inspect_rows and is_main_process():
        first = next(task.batches(0, rank=0, num_ranks=1))
        inspected = InspectedBatch(first, inspect_rows, system.layout(config), task.counts(first))
        write_batch_page(run_dir, inspected, tokenizer, Names(()))
    training = train(
        task,
        train_config,
        run_dir,
        description={
            "model": task.model_config(),
            "data": {name: value for name, value in dataclasses.asdict(data).items() if name not in _OF_IMAGES},
            "sampling": {name: getattr(sampling, name) for name in system.text_only_sampling},
            "num_classes": num_classes,
            "tokenizer": tokenizer.digest,
            "text_corpus": texts.digest,
            **({} if before.feature_space is None else {"feature_space": before.feature_space}),
        },
        recorded={
            "notes": texts.notes,
            "text_files": [str(file) for file in text_files],
            "tokenizer_spec": tokenizer_spec,
            "bert": None if bert is None else bert.spec,
            "start": None if start is None else str(start.source),
            "classes": before.classes,
            "torch": torch.__version__,
        },
        resume=resume,
        stop_at_step=stop_at_step,
    )
    return PretrainResult(
        run_dir=run_dir,
        sources=(),
        notes=texts.notes,
        num_classes=num_classes,
        vocab_size=tokenizer.vocab_size,
        training=training,
        evaluation=dict(training.evaluation or task.evaluate()),
        asked="the first rows of text trained on, with other masks",
    )


def _check_read(settings: Any, section: str, unread: Iterable[str]) -> None:
    """Refuses what a run on text alone would not look at."""
    for name in unread:
        if getattr(settings, name) != getattr(type(settings)(), name):
            raise ValueError(f"{section}.{name} is of captions with images; a run on text alone has none, leave it out")
