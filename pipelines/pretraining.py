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
from torch import Tensor, nn

from features.record import RegionRecord, TopKDistribution
from features.store import FeatureStore
from model.inputs import IGNORE_INDEX, VLBatch
from model.losses import SumCount
from model.masking import mask_regions, mask_words
from model.vlbert import PreTrainingOutput, VLBertConfig, VLBertForPreTraining, average_visible_regions, vlbert_small
from pipelines.tokenizer import CaptionTokenizer, load_tokenizer
from pipelines.training import ParameterGroup, TrainConfig, TrainResult, check_run_folder, train

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
        region_masked_share: how many of the predicted regions are hidden.
        fixed_masks: every epoch, and evaluation, draws the masks of epoch 0: for checking that a model can over-fit.
    """

    batch_size: int = 64
    max_elements: int = 64
    word_probability: float = 0.15
    region_probability: float = 0.15
    region_masked_share: float = 0.9
    fixed_masks: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"PretrainConfig: batch_size must be at least 1, got {self.batch_size}")
        if self.max_elements and self.max_elements < 4:
            raise ValueError(f"PretrainConfig: max_elements must be 0 or at least 4, got {self.max_elements}")
        for name in ("word_probability", "region_probability", "region_masked_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"PretrainConfig: {name} must be in 0..1, got {getattr(self, name)}")


# --- joining captions and records ---


@dataclass(frozen=True)
class JoinReport:
    """Attributes:
    matched: caption rows with a record; the sum of `by_exact_id` and `by_name`.
    captions_without_record: caption rows that are left out.
    records_without_caption: records that are not used.
    by_exact_id, by_name: rows matched by the whole id, or by its last path component without extension.
    """

    matched: int
    captions_without_record: int
    records_without_caption: int
    by_exact_id: int
    by_name: int


def join_captions(
    rows: Iterable[tuple[str, str]], record_ids: Iterable[str]
) -> tuple[list[tuple[str, str]], JoinReport]:
    """Caption rows (image id, caption) with the ids of their records, in the order of `rows`.

    A row matches the record of the same id, else the one record whose last path component without extension is the
    same ("images/a.jpg" and "train/a"); where several records share that name, none.

    Raises:
        ValueError: when nothing matches, with an id of each side.
    """
    rows, known = list(rows), set(record_ids)
    by_name: dict[str, str | None] = {}
    for record_id in known:
        short = _short_name(record_id)
        by_name[short] = None if short in by_name else record_id
    joined, exact = [], 0
    for image_id, caption in rows:
        if image_id in known:
            joined.append((image_id, caption))
            exact += 1
        elif (found := by_name.get(_short_name(image_id))) is not None:
            joined.append((found, caption))
    if not joined:
        raise ValueError(
            f"none of {len(rows)} captions names an image of the store ({len(known)} records): a caption names "
            f"{rows[0][0] if rows else None!r}, the store holds {min(known, default=None)!r}; extract the images of "
            f"these captions, or write the store's ids into the caption file"
        )
    used = {record_id for record_id, _ in joined}
    report = JoinReport(len(joined), len(rows) - len(joined), len(known - used), exact, len(joined) - exact)
    return joined, report


def _short_name(image_id: str) -> str:
    last = image_id.replace("\\", "/").rsplit("/", 1)[-1]
    stem, dot, _ = last.rpartition(".")
    return stem if dot and stem else last


# --- one sample ---


@dataclass(frozen=True, eq=False)
class PretrainSample:
    """One row of a batch, before padding. T text pieces, R regions, C region labels.

    Attributes:
        text_ids, text_labels: (T,) int64.
        features: (R, D) float32; boxes: (R, 4) float32; masked, predicted: (R,) bool.
        targets: (R, C) float32, zeros where not predicted.
        whole_image: (D,) float32, mean of all visible regions, those included that were cut off.
    """

    text_ids: np.ndarray
    text_labels: np.ndarray
    features: Tensor
    boxes: np.ndarray
    masked: np.ndarray
    predicted: np.ndarray
    targets: Tensor
    whole_image: Tensor
    height: int
    width: int


def make_sample(
    record: RegionRecord,
    text_ids: np.ndarray,
    text_labels: np.ndarray,
    masked: np.ndarray,
    predicted: np.ndarray,
    *,
    num_classes: int,
    max_elements: int,
    max_text: int,
) -> PretrainSample:
    """Orders, masks and cuts one record (jackroos/VL-BERT pretrain/data/datasets/conceptual_captions.py, __getitem__).

    Args:
        text_ids, text_labels: (T,) int64 after word masking.
        masked, predicted: (K,) bool, in the order of the regions by class score, highest first.
        num_classes: foreground classes.
        max_elements: as in `PretrainConfig`.
        max_text: most text pieces the model takes.
    Raises:
        ValueError: naming the record, when its classes do not fit `num_classes`.
    """
    order = np.argsort(-record.class_scores, kind="stable")
    features = _as_float32(record.features[order])
    whole_image = average_visible_regions(
        features, torch.ones(len(order), dtype=torch.bool), torch.from_numpy(masked.copy())
    )
    text_kept, regions_kept = len(text_ids), len(order)
    if max_elements:
        text_kept, elements_kept = _cut(text_kept, regions_kept + 1, max_elements)
        regions_kept = elements_kept - 1
    text_kept = min(text_kept, max_text)
    order, masked, predicted = order[:regions_kept], masked[:regions_kept], predicted[:regions_kept]
    targets = torch.zeros(len(order), num_classes + 1)
    if predicted.any():
        targets[torch.from_numpy(predicted.copy())] = _class_targets(record, order[predicted], num_classes)
    return PretrainSample(
        # The last piece is [SEP] and stays.
        text_ids=np.append(text_ids[: text_kept - 1], text_ids[-1]),
        text_labels=np.append(text_labels[: text_kept - 1], text_labels[-1]),
        features=features[:regions_kept],
        boxes=record.boxes[order],
        masked=masked,
        predicted=predicted,
        targets=targets,
        whole_image=whole_image,
        height=record.height,
        width=record.width,
    )


def _cut(text: int, elements: int, limit: int) -> tuple[int, int]:
    """Lengths after removing one by one from the longer side (from text when equal) until both fit in `limit`.

    At least [CLS], [SEP] and the whole image stay.
    """
    while text + elements > limit and text > 0 and elements > 0:
        if elements > text:
            elements -= 1
        else:
            text -= 1
    return max(text, 2), max(elements, 1)


def _as_float32(features: np.ndarray) -> Tensor:
    # torch converts half precision many times faster than numpy, and knows bfloat16.
    if features.dtype == np.float32:
        return torch.from_numpy(features)
    kind = torch.float16 if features.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(features.view(np.int16)).view(kind).float()


def _class_targets(record: RegionRecord, chosen: np.ndarray, num_classes: int) -> Tensor:
    """(n, num_classes + 1) float32 distributions of the `chosen` regions, background last."""
    distribution = record.class_distribution
    if distribution is None:
        if int(record.class_ids[chosen].max()) >= num_classes:
            raise ValueError(
                f"record {record.image_id!r}: has class {int(record.class_ids[chosen].max())}, the model was made for "
                f"classes 0..{num_classes - 1}; give the number of classes of this store's detector"
            )
        one_hot = torch.zeros(len(chosen), num_classes + 1)
        one_hot[torch.arange(len(chosen)), torch.from_numpy(record.class_ids[chosen].astype(np.int64))] = 1.0
        return one_hot
    if isinstance(distribution, TopKDistribution):
        rows = torch.from_numpy(distribution.dense()[chosen])
    else:
        rows = _as_float32(distribution[chosen])
    if rows.shape[1] != num_classes + 1:
        raise ValueError(
            f"record {record.image_id!r}: class distribution has {rows.shape[1]} columns, the model was made for "
            f"{num_classes} classes and background; give the number of classes of this store's detector"
        )
    sums = rows.sum(dim=1)
    # The release silently drops a region whose distribution is further off than this.
    if bool((sums - 1).abs().max() >= 0.1):
        raise ValueError(
            f"record {record.image_id!r}: a class distribution sums to {float(sums[(sums - 1).abs().argmax()]):.3f}, "
            f"not 1; was the background removed?"
        )
    return rows


def collate(samples: Sequence[PretrainSample], sample_ids: Sequence[str], *, pad_id: int) -> VLBatch:
    """Pads samples to one batch."""
    text = max(len(sample.text_ids) for sample in samples)
    regions = max(len(sample.boxes) for sample in samples)
    rows, width, labels = len(samples), samples[0].features.shape[1], samples[0].targets.shape[1]
    text_ids = torch.full((rows, text), pad_id, dtype=torch.long)
    text_labels = torch.full((rows, text), IGNORE_INDEX, dtype=torch.long)
    text_mask = torch.zeros(rows, text, dtype=torch.bool)
    features, boxes = torch.zeros(rows, regions, width), torch.zeros(rows, regions, 4)
    targets = torch.zeros(rows, regions, labels)
    region_mask, masked, predicted = (torch.zeros(rows, regions, dtype=torch.bool) for _ in range(3))
    for row, sample in enumerate(samples):
        pieces, count = len(sample.text_ids), len(sample.boxes)
        text_ids[row, :pieces] = torch.from_numpy(sample.text_ids)
        text_labels[row, :pieces] = torch.from_numpy(sample.text_labels)
        text_mask[row, :pieces] = True
        features[row, :count] = sample.features
        boxes[row, :count] = torch.from_numpy(sample.boxes)
        targets[row, :count] = sample.targets
        region_mask[row, :count] = True
        masked[row, :count] = torch.from_numpy(sample.masked)
        predicted[row, :count] = torch.from_numpy(sample.predicted)
    return VLBatch(
        text_ids=text_ids,
        text_mask=text_mask,
        text_segments=torch.zeros_like(text_ids),
        region_features=features,
        region_boxes=boxes,
        region_mask=region_mask,
        image_hw=torch.tensor([[sample.height, sample.width] for sample in samples], dtype=torch.float32),
        masked_regions=masked,
        whole_image_features=torch.stack([sample.whole_image for sample in samples]),
        text_labels=text_labels,
        region_targets=targets,
        region_target_mask=predicted,
        sample_ids=tuple(sample_ids),
    )


# --- the task ---


class PretrainTask:
    """Masked words and masked regions on captioned records: a `TrainTask`.

    Args:
        store: gives the record of every id in `captions`.
        captions: (record id, caption) rows, as `join_captions` returns them.
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
        first, size = start_sample + rank * self.batch_size, self.batch_size
        epoch, order = -1, np.empty(0, dtype=np.int64)
        while True:
            chosen = []
            for number in range(first, first + size):
                if number // self.num_samples != epoch:
                    epoch = number // self.num_samples
                    order = np.random.default_rng([_ORDER, self._seed, epoch]).permutation(self.num_samples)
                chosen.append((epoch, int(order[number % self.num_samples])))
            yield self._batch(chosen)
            first += size * num_ranks

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
class PretrainResult:
    """Attributes:
    run_dir: the run folder: config.json, log.jsonl, tokenizer/, checkpoints/.
    join: how captions met records.
    num_classes, vocab_size: C and V; ln(C + 1) and ln(V) are the losses of a model that knows nothing.
    training: where the loop ended.
    evaluation: of `evaluate` on the final weights.
    """

    run_dir: Path
    join: JoinReport
    num_classes: int
    vocab_size: int
    training: TrainResult
    evaluation: dict[str, float | None]


def pretrain(
    store: FeatureStore,
    rows: Iterable[tuple[str, str]],
    run_dir: Path,
    *,
    train_config: TrainConfig,
    config: PretrainConfig | None = None,
    tokenizer_spec: str = "captions",
    build_model_config: Callable[..., VLBertConfig] = vlbert_small,
    model_overrides: Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    resume: bool = False,
    stop_at_step: int | None = None,
) -> PretrainResult:
    """Pre-trains a VL-BERT on a store and captions, and writes a run folder.

    Args:
        rows: (image id, caption).
        tokenizer_spec: see `load_tokenizer`; a resumed run reads the tokenizer it saved.
        build_model_config: a preset such as `vlbert_small`; vocabulary, feature width and region labels are filled in.
        model_overrides: further fields of the model configuration.
        num_classes: foreground classes of the detector; None takes the store's vocabulary.
        resume, stop_at_step: see `train`.
    Raises:
        ValueError: whatever does not fit, saying what to do.
    """
    run_dir, config = Path(run_dir), config or PretrainConfig()
    check_run_folder(run_dir, resume=resume)
    captions, join = join_captions(rows, store.ids())
    logger.info(
        "%d captions with a record (%d by id, %d by name), %d without, %d records without a caption",
        join.matched, join.by_exact_id, join.by_name, join.captions_without_record, join.records_without_caption,
    )  # fmt: skip
    saved_tokenizer = run_dir / "tokenizer"
    if resume and saved_tokenizer.is_dir():
        tokenizer = load_tokenizer(str(saved_tokenizer))
    else:
        tokenizer = load_tokenizer(tokenizer_spec, (caption for _, caption in captions))
        tokenizer.save(saved_tokenizer)
    first = store[captions[0][0]]
    if num_classes is None:
        num_classes = _count_classes(store, first)
    model_config = build_model_config(
        **{
            "vocab_size": tokenizer.vocab_size,
            "region_feature_size": first.features.shape[1],
            "num_region_labels": num_classes + 1,
            **(model_overrides or {}),
        }
    )
    torch.manual_seed(train_config.seed)
    model = VLBertForPreTraining(model_config)
    task = PretrainTask(store, captions, tokenizer, model, config, num_classes=num_classes, seed=train_config.seed)
    description = {
        "model": task.model_config(),
        "pretrain": dataclasses.asdict(config),
        "num_classes": num_classes,
        "tokenizer": tokenizer.digest,
        "captions": _digest_of(captions),
        "feature_space": store.fingerprint.feature_space,
    }
    recorded = {
        "join": dataclasses.asdict(join),
        "tokenizer_spec": tokenizer_spec,
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
    return PretrainResult(run_dir, join, num_classes, tokenizer.vocab_size, training, evaluate(task))


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
