"""VL-BERT pre-training on stored regions and captions: masked words and masked regions.

caption rows x store -> join -> sample (masks, order, targets, cut) -> VLBatch -> model -> losses -> the training loop
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from features.record import RegionRecord, TopKDistribution
from features.store import FeatureStore
from model.inputs import IGNORE_INDEX, VLBatch
from model.losses import SumCount
from model.masking import mask_regions, mask_words
from model.vlbert import PreTrainingOutput, VLBertForPreTraining
from model.vlbert_config import VLBertConfig, vlbert_small
from pipelines.bert_start import PublishedBert, start_from_bert
from pipelines.caption_files import Caption
from pipelines.caption_table import CaptionTable, TextColumn
from pipelines.captions import CaptionJoin, JoinReport, check_match
from pipelines.held_out import HeldOut, LeakReport, refuse_leaks
from pipelines.optimizer import TrainConfig
from pipelines.parameter_groups import ParameterGroup
from pipelines.pretrain_sample import PretrainSample, collate, make_sample
from pipelines.sample_order import SampleOrder
from pipelines.tokenizer import CaptionTokenizer, load_tokenizer
from pipelines.training import TrainResult, check_run_folder, train

logger = logging.getLogger(__name__)

EVALUATION_EPOCH = 2**31  # training never comes to this epoch, so its masks are new to the model
_ORDER, _MASKS = 1, 2  # first number of a seed: keeps the random streams of one run apart


class RecordStore(Protocol):
    """What is read from a store; a dict of records will do."""

    def __getitem__(self, image_id: str, /) -> RegionRecord: ...


@dataclass(frozen=True)
class PretrainConfig:
    """How samples are made.

    Attributes:
        batch_size: captions per micro-batch and process.
        max_elements: text pieces + whole image + regions kept, cut from the longer side (VL-BERT's SEQ_LEN, [END] not
            counted); 0 = no cut. Text is always cut to the positions the model has.
        word_probability, region_probability: how often a word or region is predicted.
        word_masked_share: how many of the predicted words become [MASK]; half of the others become random ones.
        region_masked_share: how many of the predicted regions are hidden.
        fixed_masks: every epoch, and evaluation, draws the masks of epoch 0: for checking that a model can over-fit.
    """

    batch_size: int = 64
    max_elements: int = 64
    word_probability: float = 0.15
    region_probability: float = 0.15
    word_masked_share: float = 0.8
    region_masked_share: float = 0.9
    fixed_masks: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"PretrainConfig: batch_size must be at least 1, got {self.batch_size}")
        if self.max_elements and self.max_elements < 4:
            raise ValueError(f"PretrainConfig: max_elements must be 0 or at least 4, got {self.max_elements}")
        for name in ("word_probability", "region_probability", "word_masked_share", "region_masked_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"PretrainConfig: {name} must be in 0..1, got {getattr(self, name)}")


# --- the task ---


class PretrainTask:
    """Masked words and masked regions on captioned records: a `TrainTask`.

    Args:
        store: gives the record of every id in `captions`.
        captions: (record id, caption) rows, such as a `CaptionTable`.
        num_classes: foreground classes of the store's detector; the model predicts one more, background.
        seed: of sample order and masks. Both follow from it and the number of a sample alone.
    Raises:
        ValueError: when model, tokenizer and store do not fit each other.
    """

    def __init__(
        self,
        store: RecordStore,
        captions: Sequence[tuple[str, str]],
        tokenizer: CaptionTokenizer,
        model: VLBertForPreTraining,
        config: PretrainConfig,
        *,
        num_classes: int,
        seed: int,
    ) -> None:
        if not captions:
            raise ValueError("pre-training needs at least one caption with a record")
        self._store = store
        self._captions = captions
        self._tokenizer = tokenizer
        self._model = model
        self._config = config
        self._num_classes = num_classes
        self._seed = seed
        self._order = SampleOrder(len(captions), (_ORDER, seed))
        _check_fit(model.config, tokenizer, store[captions[0][0]], num_classes)

    @property
    def model(self) -> VLBertForPreTraining:
        return self._model

    @property
    def batch_size(self) -> int:
        return self._config.batch_size

    @property
    def num_samples(self) -> int:
        return len(self._captions)

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[VLBatch]:
        places = self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)
        return map(self._batch, places)

    def counts(self, batch: VLBatch) -> dict[str, int]:
        assert batch.text_labels is not None and batch.region_target_mask is not None
        return {
            "masked_words": int((batch.text_labels != IGNORE_INDEX).sum()),
            "masked_regions": int(batch.region_target_mask.sum()),
        }

    def losses(self, model: nn.Module, batch: VLBatch) -> PreTrainingOutput:
        return model(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        # One group: the release decays biases and LayerNorms too.
        return [{"params": list(self._model.parameters())}]

    def sample_ids(self, batch: VLBatch) -> Sequence[str]:
        return batch.sample_ids

    def model_config(self) -> dict[str, Any]:
        return {**self._model.config.to_diff_dict(), "architectures": [type(self._model).__name__]}

    def evaluation_batches(self, max_samples: int) -> Iterator[VLBatch]:
        """The first `max_samples` captions in file order, with masks that training does not draw."""
        last = min(max_samples, self.num_samples)
        for start in range(0, last, self.batch_size):
            indices = range(start, min(start + self.batch_size, last))
            yield self._batch([(EVALUATION_EPOCH, index) for index in indices])

    def _batch(self, chosen: Sequence[tuple[int, int]]) -> VLBatch:
        samples = [self._sample(epoch, index) for epoch, index in chosen]
        return collate(samples, [self._captions[index][0] for _, index in chosen], pad_id=self._tokenizer.pad_id)

    def _sample(self, epoch: int, index: int) -> PretrainSample:
        record_id, caption = self._captions[index]
        record = self._store[record_id]
        mask_epoch = 0 if self._config.fixed_masks else epoch
        generator = np.random.default_rng([_MASKS, self._seed, mask_epoch, index])
        encoded = self._tokenizer.encode(caption)
        text_ids, text_labels = mask_words(
            encoded.ids,
            encoded.word_ids,
            generator,
            mask_id=self._tokenizer.mask_id,
            vocab_size=self._tokenizer.vocab_size,
            probability=self._config.word_probability,
            masked_share=self._config.word_masked_share,
        )
        masked, predicted = mask_regions(
            record.num_regions,
            generator,
            probability=self._config.region_probability,
            masked_share=self._config.region_masked_share,
        )
        return make_sample(
            record,
            text_ids,
            text_labels,
            masked,
            predicted,
            num_classes=self._num_classes,
            max_elements=self._config.max_elements,
            max_text=self._model.config.max_position_embeddings - 2,
        )


def _check_fit(config: VLBertConfig, tokenizer: CaptionTokenizer, record: RegionRecord, num_classes: int) -> None:
    width = record.features.shape[1]
    if config.region_feature_size != width:
        raise ValueError(
            f"record {record.image_id!r}: features have width {width}, the model was made for "
            f"{config.region_feature_size}; was the store extracted with another detector?"
        )
    if config.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer ({tokenizer.description}) has {tokenizer.vocab_size} pieces, the model was made for "
            f"{config.vocab_size}; set vocab_size"
        )
    if config.num_region_labels != num_classes + 1:
        raise ValueError(
            f"the model has {config.num_region_labels} region labels, this store has {num_classes} classes and "
            f"background; set num_region_labels to {num_classes + 1}"
        )


def evaluate(task: PretrainTask, *, max_samples: int = 256) -> dict[str, float | None]:
    """Mean losses and accuracies without dropout, on captions of the task with masks it does not train on.

    None where nothing was predicted.
    """
    model, device = task.model, next(task.model.parameters()).device
    was_training = model.training
    model.eval()
    sums: dict[str, SumCount] = {}
    with torch.no_grad():
        for batch in task.evaluation_batches(max_samples):
            output = model(batch.to(device))
            for name, term in {**output.losses, **output.metrics}.items():
                sums[name] = sums[name] + term if name in sums else term
    model.train(was_training)
    return {name: float(term.mean) if int(term.count) else None for name, term in sums.items()}


# --- the run ---


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
    run_dir: the run folder: config.json, log.jsonl, tokenizer/, checkpoints/.
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
    config: PretrainConfig | None = None,
    tokenizer_spec: str = "captions",
    build_model_config: Callable[..., VLBertConfig] = vlbert_small,
    model_overrides: Mapping[str, Any] | None = None,
    bert: PublishedBert | None = None,
    num_classes: int | None = None,
    min_match: float = 0.0,
    guard: LeakGuard | None = None,
    resume: bool = False,
    stop_at_step: int | None = None,
) -> PretrainResult:
    """Pre-trains a VL-BERT on a store and captions, and writes a run folder.

    Args:
        captions: joined to the records by `CaptionJoin`.
        tokenizer_spec: see `load_tokenizer`; a resumed run reads the tokenizer it saved.
        build_model_config: a preset such as `vlbert_small`; vocabulary, feature width and region labels are filled in.
        model_overrides: further fields of the model configuration.
        bert: what the model starts from; its sizes take the place of the preset's.
        num_classes: foreground classes of the detector; None takes the store's vocabulary.
        min_match: share of the captioned images that must have a record, see `check_match`.
        guard: what must not be trained on.
        resume, stop_at_step: see `train`.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run_dir, config = Path(run_dir), config or PretrainConfig()
    check_run_folder(run_dir, resume=resume)
    rows, join = _join(store, captions, min_match)
    leaks = None
    if guard is not None:
        rows, leaks = guard.kept(rows, str(store.path))
    saved_tokenizer = run_dir / "tokenizer"
    if resume and saved_tokenizer.is_dir():
        tokenizer = load_tokenizer(str(saved_tokenizer))
    else:
        tokenizer = load_tokenizer(tokenizer_spec, (caption for _, caption in rows))
        tokenizer.save(saved_tokenizer)
    first = store[rows[0][0]]
    if num_classes is None:
        num_classes = _count_classes(store, first)
    sizes = {"vocab_size": tokenizer.vocab_size} if bert is None else dict(bert.sizes)
    fields = {
        **sizes,
        "region_feature_size": first.features.shape[1],
        "num_region_labels": num_classes + 1,
        **(model_overrides or {}),
    }
    try:
        model_config = build_model_config(**fields)
    except Exception as error:  # transformers checks types with exceptions of its own
        raise ValueError(f"model settings {dict(model_overrides or {})}: {' '.join(str(error).split())}") from None
    torch.manual_seed(train_config.seed)
    model = VLBertForPreTraining(model_config)
    if bert is not None:
        left = start_from_bert(model, bert)
        logger.info("BERT %s: %s filled, %s as drawn", bert.spec, len(model.state_dict()) - len(left), len(left))
    task = PretrainTask(store, rows, tokenizer, model, config, num_classes=num_classes, seed=train_config.seed)
    description = {
        "model": task.model_config(),
        "pretrain": dataclasses.asdict(config),
        "num_classes": num_classes,
        "tokenizer": tokenizer.digest,
        "captions": _digest_of(rows),
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


def _join(store: FeatureStore, captions: Iterable[Caption], min_match: float) -> tuple[CaptionTable, JoinReport]:
    ids = TextColumn(store.ids())
    join = CaptionJoin(ids)
    rows = CaptionTable(ids, join.rows(captions))
    report = join.report()
    check_match(report, min_match=min_match, captions="the captions", images=str(store.path))
    for line in report.lines():
        logger.info("%s", line)
    return rows, report


def _count_classes(store: FeatureStore, record: RegionRecord) -> int:
    names = store.vocabulary["classes"]
    if names:
        return len(names)
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    if distribution is not None:
        return distribution.shape[1] - 1
    raise ValueError(
        f"store {store.path} holds neither class names nor class distributions; say how many foreground classes its "
        f"detector has (num_classes)"
    )


def _digest_of(captions: Sequence[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for row in captions:
        for text in row:
            raw = text.encode("utf-8")
            digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
