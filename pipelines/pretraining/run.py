"""A pre-training run: a store and captions in, a run folder out.

caption rows x store -> join -> leak guard -> corpus -> a system's samples -> VLBatch -> model -> losses -> the loop
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from features.record import RegionRecord, TopKDistribution
from features.store import FeatureStore
from pipelines.bert_start import PublishedBert, start_from_bert
from pipelines.caption_files import Caption
from pipelines.caption_table import CaptionTable, TextColumn
from pipelines.captions import CaptionJoin, JoinReport, check_match
from pipelines.held_out import HeldOut, LeakReport, refuse_leaks
from pipelines.optimizer import TrainConfig
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.systems import SYSTEMS, System
from pipelines.pretraining.task import DataConfig, PretrainTask, evaluate
from pipelines.pretraining.trained_images import write_trained_images
from pipelines.tokenizer import load_tokenizer
from pipelines.training import TrainResult, check_run_folder, train

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeakGuard:
    """Images that must not be trained on.

    Attributes:
        held_out: the rules.
        data_set: that bare numbers among the store's ids belong to, see `image_identity`.
        leave_out: drop such images instead of stopping.
    """

    held_out: HeldOut
    data_set: str | None
    leave_out: bool = False

    def kept(self, rows: CaptionTable, where: str) -> tuple[CaptionTable, LeakReport]:
        """The rows that may be trained on; ValueError where one may not and none is to be left out, or none is left."""
        report = self.held_out.scan(rows.captioned_ids(), self.data_set)
        if not self.leave_out:
            refuse_leaks(report, where)
        if len(report.leaked) == report.images:
            raise ValueError(f"{where}: all of {report.images:,} captioned images are held out; nothing to train on")
        return (rows.without(report.leaked) if report.leaked else rows), report


@dataclass(frozen=True)
class PretrainResult:
    """Attributes:
    run_dir: the run folder: config.json, log.jsonl, tokenizer/, trained_images.npy, checkpoints/.
    join: how captions met records.
    leaks: what of the captioned images is held out; None when nothing was named to be. Of what was trained on it is
        none: such images stop a run or are left out.
    num_classes, vocab_size: C and V; ln(C + 1) and ln(V) are the losses of a model that knows nothing.
    training: where the loop ended.
    evaluation: of `evaluate` on the final weights.
    """

    run_dir: Path
    join: JoinReport
    leaks: LeakReport | None
    num_classes: int
    vocab_size: int
    training: TrainResult
    evaluation: dict[str, float | None]


def pretrain(
    store: FeatureStore,
    captions: Iterable[Caption],
    run_dir: Path,
    *,
    train_config: TrainConfig,
    system: System = SYSTEMS["vlbert"],
    size: str = "small",
    data: DataConfig | None = None,
    sampling: Any = None,
    tokenizer_spec: str = "captions",
    model_overrides: Mapping[str, Any] | None = None,
    bert: PublishedBert | None = None,
    num_classes: int | None = None,
    min_match: float = 0.0,
    guard: LeakGuard | None = None,
    resume: bool = False,
    stop_at_step: int | None = None,
) -> PretrainResult:
    """Pre-trains a model on a store and captions, and writes a run folder.

    Args:
        captions: joined to the records by `CaptionJoin`.
        tokenizer_spec: see `load_tokenizer`; a resumed run reads the tokenizer it saved.
        system: whose model and rules; `size` names one of its presets. Vocabulary, feature width and region labels are
            filled in.
        data, sampling: how samples are made and batched; None for the defaults, `sampling` of the system's own class.
        model_overrides: further fields of the model configuration.
        bert: what the model starts from; its sizes take the place of the preset's.
        num_classes: foreground classes of the detector; None takes the store's vocabulary.
        min_match: share of the captioned images that must have a record, see `check_match`.
        guard: what must not be trained on.
        resume, stop_at_step: see `train`.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run_dir, data = Path(run_dir), data or DataConfig()
    sampling = sampling or system.sampling()
    check_run_folder(run_dir, resume=resume)
    rows, join = join_captions(store, captions, min_match)
    leaks = None
    if guard is not None:
        rows, leaks = guard.kept(rows, str(store.path))
    saved_tokenizer = run_dir / "tokenizer"
    if resume and saved_tokenizer.is_dir():
        tokenizer = load_tokenizer(str(saved_tokenizer))
    else:
        tokenizer = load_tokenizer(tokenizer_spec, (caption for _, caption in rows))
        tokenizer.save(saved_tokenizer)
    write_trained_images(run_dir, rows.captioned_ids())
    first = store[rows[0][0]]
    if num_classes is None:
        num_classes = known_classes(store, first)
    if num_classes is None:
        raise ValueError(
            f"store {store.path} holds neither class names nor class distributions; say how many foreground classes "
            f"its detector has (num_classes)"
        )
    sizes = {"vocab_size": tokenizer.vocab_size} if bert is None else dict(bert.sizes)
    fields = {
        **sizes,
        "region_feature_size": first.features.shape[1],
        **system.region_label_fields(num_classes, first.features.shape[1]),
        **(model_overrides or {}),
    }
    try:
        model_config = system.sizes[size](**fields)
    except Exception as error:  # transformers checks types with exceptions of its own
        raise ValueError(f"model settings {dict(model_overrides or {})}: {' '.join(str(error).split())}") from None
    torch.manual_seed(train_config.seed)
    model = system.model_class(model_config)
    if bert is not None:
        left = start_from_bert(model, bert)
        logger.info("BERT %s: %s filled, %s as drawn", bert.spec, len(model.state_dict()) - len(left), len(left))
    sampler = system.sampler(sampling, tokenizer, model_config, num_classes=num_classes)
    task = PretrainTask(model, Corpus(store, rows), sampler, data, pad_id=tokenizer.pad_id, seed=train_config.seed)
    description = {
        "model": task.model_config(),
        "data": dataclasses.asdict(data),
        "sampling": dataclasses.asdict(sampling),
        "num_classes": num_classes,
        "tokenizer": tokenizer.digest,
        "captions": digest_of_captions(rows),
        "feature_space": store.fingerprint.feature_space,
    }
    recorded = {
        "join": join.to_json(),
        "held_out": None if leaks is None else leaks.to_json(),
        "tokenizer_spec": tokenizer_spec,
        "bert": None if bert is None else bert.spec,
        "store": str(store.path),
        "store_numerics": store.fingerprint.numerics,
        "torch": torch.__version__,
    }
    training = train(
        task,
        train_config,
        run_dir,
        description=description,
        recorded=recorded,
        resume=resume,
        stop_at_step=stop_at_step,
    )
    return PretrainResult(run_dir, join, leaks, num_classes, tokenizer.vocab_size, training, evaluate(task))


def join_captions(
    store: FeatureStore, captions: Iterable[Caption], min_match: float
) -> tuple[CaptionTable, JoinReport]:
    """The captions whose image has a record, in order; ValueError where less than `min_match` of the images do."""
    ids = TextColumn(store.ids())
    join = CaptionJoin(ids)
    rows = CaptionTable(ids, join.rows(captions))
    report = join.report()
    check_match(report, min_match=min_match, captions="the captions", images=str(store.path))
    for line in report.lines():
        logger.info("%s", line)
    return rows, report


def known_classes(store: FeatureStore, record: RegionRecord) -> int | None:
    """Foreground classes of the store's detector; None where neither its names nor a record tell."""
    names = store.vocabulary["classes"]
    if names:
        return len(names)
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    return None if distribution is None else distribution.shape[1] - 1


def digest_of_captions(captions: Iterable[tuple[str, str]]) -> str:
    """SHA-256 (hex) of rows of (record id, caption), in their order."""
    digest = hashlib.sha256()
    for row in captions:
        for text in row:
            raw = text.encode("utf-8")
            digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
