"""Heads of downstream tasks on any of the models: they read a `VLBatch` and its `VLOutput`, nothing else.

They start as BERT draws new weights and know widths instead of models. Each model's published task heads, as its
fine-tuned checkpoints hold them, stand in its own folder (`vilbert/model.py`, ...). docs/models.md, "Heads and losses
of tasks", has the head and loss of each.

`AuxiliaryTaskModel` learns classes of regions and hidden words from the same rows, as VL-BERT does on VCR
(arXiv:1908.08530v1, section 4.2.1; jackroos/VL-BERT vcr/modules). Here any model can.

Shapes: B rows, T text pieces, R regions, P phrases, C classes, W width of a head's input.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roibeam.model.common.bert import BertSizes, StrictConfig, draw_as_bert
from roibeam.model.common.heads import DroppedLinear, NormedClassifier, PhraseToRegions, RegionClassHead
from roibeam.model.common.losses import SumCount, accuracy, cross_entropy
from roibeam.model.inputs import OutputWidths, VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel, PreTrainingTerms, count_labels, count_true

READS = ("pooled", "pooled_text", "cls", "mask_piece")
CLASSIFIERS = ("linear", "two_layers")
NO_POOLER = "this model has no pooler; make it with one (VL-BERT: with_pooler=True), or the head with reads='cls'"
HEAD_FOLDER = "task_head"  # in the folder of the model it belongs to


def read_summary(batch: VLBatch, output: VLOutput, reads: str) -> Tensor:
    """(B, W), one vector for each row.

    Args:
        reads: one of `READS`. "pooled": the pair's vector. "pooled_text": the text's own one; a model that does not
            pool its streams apart pools [CLS], which is the text's too. "cls": the last state of [CLS]. "mask_piece":
            that of the piece before the last real one, where the texts of VQA hold [MASK] (VL-BERT "[CLS] question
            [SEP] [MASK] [SEP]", VisualBERT "[CLS] question ? [MASK] [SEP]").
    """
    if reads == "cls":
        return output.text_states[:, 0]
    if reads == "mask_piece":
        place = pieces_read(batch, reads)
        return output.text_states[torch.arange(len(place), device=place.device), place]
    pooled = output.pooled
    if reads == "pooled_text" and output.pooled_text is not None:
        pooled = output.pooled_text
    if pooled is None:
        raise ValueError(NO_POOLER)
    return pooled


def pieces_read(batch: VLBatch, reads: str) -> Tensor:
    """(B,) long, the one piece of each row whose last state `read_summary` needs: [CLS], which poolers read too, or
    [MASK]."""
    mask = batch.rows_text_mask
    return (mask.sum(dim=1) - 2).clamp(min=0) if reads == "mask_piece" else mask.new_zeros(len(mask), dtype=torch.long)


def reading(batch: VLBatch, reads: str) -> VLBatch:
    """The batch for a model of which only `read_summary` is needed."""
    pieces = torch.arange(batch.text_mask.shape[1], device=batch.text_mask.device)
    read = pieces == pieces_read(batch, reads)[:, None]
    return replace(batch, read_pieces=read, read_regions=torch.zeros_like(batch.rows_region_mask))


def phrase_states(output: VLOutput, phrase_positions: Tensor) -> Tensor:
    """(B, P, H), the states that `VLBatch.phrase_positions` names; without meaning if there is no phrase (-1)."""
    states = output.text_states
    if output.region_states.shape[-1] == states.shape[-1]:
        states = torch.cat([states, output.region_states], dim=1)
    places = phrase_positions.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1])
    return states.gather(1, places)


def by_choice(scores: Tensor, num_choices: int) -> Tensor:
    """(B / num_choices, num_choices) from (B,) or (B, 1): the rows of one question follow each other (VCR, retrieval).
    Raises ValueError if rows are left over."""
    if scores.numel() % num_choices:
        raise ValueError(f"{scores.numel()} rows are no questions with {num_choices} choices each")
    return scores.reshape(-1, num_choices)


def join_row_pairs(summaries: Tensor) -> Tensor:
    """(B / 2, 2 W): rows 2i and 2i + 1 are one statement with each of its two images (NLVR2). Raises ValueError for an
    odd number of rows."""
    if len(summaries) % 2:
        raise ValueError(f"{len(summaries)} rows are no pairs of images; rows 2i and 2i + 1 go together")
    return summaries.reshape(-1, 2 * summaries.shape[1])


class TaskHeadConfig(StrictConfig):
    """Fields of every head.

    Fields:
        dropout: before each linear layer that reads states.
        initializer_range: standard deviation of new weights.
    """

    dropout: float = 0.1
    initializer_range: float = 0.02

    @classmethod
    def for_model(cls, model: BertSizes, **fields: Any) -> Self:
        """Config with the widths of a model's output."""
        return cls(**(cls.widths(model, fields) | fields))

    @classmethod
    def widths(cls, model: BertSizes, fields: Mapping[str, Any]) -> dict[str, int]:
        """The fields of this config that a model decides, given the others."""
        raise NotImplementedError

    def check_model(self, model: BertSizes) -> None:
        """Raises ValueError if this head was not made for such a model."""
        for name, width in self.widths(model, vars(self)).items():
            if getattr(self, name) != width:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {getattr(self, name)}, but {type(model).__name__} gives {width}"
                )


class SummaryHeadConfig(TaskHeadConfig):
    """A head on one vector for each row.

    Fields, beside those of `TaskHeadConfig`:
        input_width: W.
        reads: the vector, see `read_summary`.
        classifier: "linear", or "two_layers": twice as wide between, GELU and LayerNorm.
        num_classes: outputs; 1 for a score or a regression.
    """

    choices = MappingProxyType({"reads": READS, "classifier": CLASSIFIERS})

    input_width: int = 768
    reads: str = "pooled"
    classifier: str = "linear"
    num_classes: int = 2

    @classmethod
    def widths(cls, model: BertSizes, fields: Mapping[str, Any]) -> dict[str, int]:
        given, reads = model.output_widths, fields.get("reads", cls.reads)
        if not reads.startswith("pooled"):
            return {"input_width": given.text}
        if given.pooled is None:
            raise ValueError(f"{type(model).__name__}: {NO_POOLER}")
        return {"input_width": given.pooled}


class LabelHeadConfig(SummaryHeadConfig):
    """Config of a `LabelHead`."""

    model_type = "roibeam-label-head"


class ImagePairHeadConfig(SummaryHeadConfig):
    """Config of an `ImagePairHead`; `input_width` is that of one row."""

    model_type = "roibeam-image-pair-head"


class RegionHeadConfig(TaskHeadConfig):
    """Config of a `RegionHead`.

    Fields, beside those of `TaskHeadConfig`:
        input_width: I, of a region's state.
        classifier: as in `SummaryHeadConfig`.
        with_whole_image: scores the whole image too, before the regions, where the model gives it a state.
    """

    model_type = "roibeam-region-head"
    choices = MappingProxyType({"classifier": CLASSIFIERS})

    input_width: int = 768
    classifier: str = "linear"
    with_whole_image: bool = False

    @classmethod
    def widths(cls, model: BertSizes, fields: Mapping[str, Any]) -> dict[str, int]:
        return {"input_width": model.output_widths.region}


class GroundingHeadConfig(TaskHeadConfig):
    """Config of a `GroundingHead`.

    Fields, beside those of `TaskHeadConfig`:
        text_width, region_width: H, I.
        inner_width: of queries and keys.
        num_heads: of them; of several, the mean of their weights is what is scored (VisualBERT section 4.4), one is the
            release's.
    """

    model_type = "roibeam-grounding-head"

    text_width: int = 768
    region_width: int = 768
    inner_width: int = 64
    num_heads: int = 1

    @classmethod
    def widths(cls, model: BertSizes, fields: Mapping[str, Any]) -> dict[str, int]:
        given: OutputWidths = model.output_widths
        return {"text_width": given.text, "region_width": given.region}


class TaskHead(PreTrainedModel):
    """Initialisation and file handling of every head; calling one takes a batch and a model's output for it."""

    config: TaskHeadConfig
    base_model_prefix = "head"
    main_input_name = "batch"

    def _init_weights(self, module: nn.Module) -> None:
        draw_as_bert(module, self.config.initializer_range)

    def forward(self, batch: VLBatch, output: VLOutput) -> Tensor:
        raise NotImplementedError

    def needed_input(self, batch: VLBatch) -> VLBatch:
        """The batch for a model that computes only this head's input."""
        return batch


class SummaryHead(TaskHead):
    """A head on one vector for each row, or on those of a pair of rows."""

    config: SummaryHeadConfig
    rows_read = 1

    def __init__(self, config: SummaryHeadConfig) -> None:
        super().__init__(config)
        self.classifier = _classifier(config, self.rows_read * config.input_width, config.num_classes)
        self.post_init()

    def needed_input(self, batch: VLBatch) -> VLBatch:
        return reading(batch, self.config.reads)


class LabelHead(SummaryHead):
    """Classes of a row: answers of VQA, NLVR2 with both images in one row, GLUE; with one class, a score of the row:
    choices of VCR and of retrieval, STS-B."""

    config_class = LabelHeadConfig
    config: LabelHeadConfig

    def forward(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, num_classes)."""
        return self.classifier(read_summary(batch, output, self.config.reads))


class ImagePairHead(SummaryHead):
    """Classes of a statement about two images, each of them in a row with the statement (NLVR2 of ViLBERT)."""

    config_class = ImagePairHeadConfig
    config: ImagePairHeadConfig
    rows_read = 2

    def forward(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B / 2, num_classes)."""
        return self.classifier(join_row_pairs(read_summary(batch, output, self.config.reads)))


class RegionHead(TaskHead):
    """Fit of each region to the text (RefCOCO+)."""

    config_class = RegionHeadConfig
    config: RegionHeadConfig

    def __init__(self, config: RegionHeadConfig) -> None:
        super().__init__(config)
        self.classifier = _classifier(config, config.input_width, 1)
        self.post_init()

    def forward(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, R), or (B, R + 1) with the whole image first; the lowest finite number at padding."""
        states, mask = output.region_states, self.scored(batch)
        if self.config.with_whole_image:
            if output.whole_image_state is None:
                raise ValueError("this model has no state of the whole image; make the head without with_whole_image")
            states = torch.cat([output.whole_image_state[:, None], states], dim=1)
        scores = self.classifier(states).squeeze(-1)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def scored(self, batch: VLBatch) -> Tensor:
        """Bool, of the shape of the scores: False at padding."""
        mask = batch.rows_region_mask
        return torch.cat([mask.new_ones(len(mask), 1), mask], dim=1) if self.config.with_whole_image else mask


class GroundingHead(TaskHead):
    """Regions that a phrase means (Flickr30k Entities, VisualBERT section 4.4)."""

    config_class = GroundingHeadConfig
    config: GroundingHeadConfig

    def __init__(self, config: GroundingHeadConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)
        widths = (config.text_width, config.region_width, config.inner_width)
        self.phrases = PhraseToRegions(*widths)
        self.others = nn.ModuleList(PhraseToRegions(*widths) for _ in range(config.num_heads - 1))
        self.post_init()

    def forward(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, P, R), before the softmax, of several heads the logarithm of their mean weights; the lowest finite number
        at padded regions, no meaning at missing phrases.
        """
        if batch.phrase_positions is None:
            raise ValueError("GroundingHead: the batch has no phrase_positions")
        phrases = phrase_states(output, batch.phrase_positions)
        states, mask = (self.dropout(phrases), self.dropout(output.region_states)), batch.rows_region_mask
        every = [head(*states, mask) for head in (self.phrases, *self.others)]
        if len(every) == 1 or not mask.shape[1]:
            return every[0]
        weights = torch.stack([scores.log_softmax(dim=-1) for scores in every])
        mean = weights.logsumexp(dim=0) - math.log(len(every))
        return mean.masked_fill(~mask[:, None], torch.finfo(mean.dtype).min)


HEADS: Mapping[str, type[TaskHead]] = MappingProxyType(
    {head.config_class.model_type: head for head in (LabelHead, ImagePairHead, RegionHead, GroundingHead)}
)


class ScoredModel(nn.Module):
    """A model of which a task reads scores."""

    model: Any

    @property
    def config(self) -> BertSizes:
        return self.model.config

    def activation_checkpointing_enable(self) -> None:
        """Enables it in the model's layers."""
        self.model.activation_checkpointing_enable()


class TaskModel(ScoredModel):
    """A model and the head of one task; one folder holds both: the model's own files, and the head's in `task_head`.
    Raises ValueError if the head was made for a model of other widths, or reads an output that this one lacks."""

    def __init__(self, model: PreTrainingModel, head: TaskHead) -> None:
        super().__init__()
        head.config.check_model(model.config)
        self.model = model
        self.head = head

    def forward(self, batch: VLBatch) -> Tensor:
        return self.head(batch, self.model.encode(self.head.needed_input(batch)))

    def save(self, folder: str | Path) -> None:
        """Writes the model into `folder`, where it can be read as a model, and the head into a folder of its own.

        Both are written aside first and renamed. In an existing folder, files of the same names are replaced.
        """
        final = Path(folder).resolve()
        aside = final.with_name(f".writing-{final.name}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            self.model.save_pretrained(aside)
            self.head.save_pretrained(aside / HEAD_FOLDER)
            if not final.exists():
                aside.rename(final)
                return
            shutil.rmtree(final / HEAD_FOLDER, ignore_errors=True)
            for written in aside.iterdir():
                written.replace(final / written.name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


class MatchModel(ScoredModel):
    """A model whose own match head, that of pre-training, scores its rows: retrieval of ImageBERT and InterBERT."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        if getattr(model, "match_head", None) is None and getattr(model, "relationship_head", None) is None:
            raise ValueError(f"{type(model).__name__}: this model was made without a match head")
        self.model = model

    def forward(self, batch: VLBatch) -> Tensor:
        """(B, 1), log-odds of a match."""
        return self.scores(self.model.encode(reading(batch, "pooled")))

    def scores(self, output: VLOutput) -> Tensor:
        """The same from a model's output."""
        return self.model.match_log_odds(output)[:, None]


class TextTaskModel(TaskModel):
    """A `TaskModel` for texts without an image (GLUE)."""

    def forward(self, batch: VLBatch) -> Tensor:
        return self.head(batch, self.model.encode_text(self.head.needed_input(batch)))


def load_task_head(folder: str | Path) -> TaskHead:
    """The head that `TaskModel.save` wrote into a model's folder. Raises ValueError if there is none, or one of an
    unknown kind."""
    config_file = Path(folder) / HEAD_FOLDER / "config.json"
    if not config_file.is_file():
        raise ValueError(f"{folder} holds no task head: there is no {config_file}")
    kind: str = json.loads(config_file.read_text()).get("model_type")
    if kind not in HEADS:
        raise ValueError(f"{config_file}: no head is of kind {kind!r}; there are {', '.join(HEADS)}")
    return HEADS[kind].from_pretrained(config_file.parent)


def _classifier(config: SummaryHeadConfig | RegionHeadConfig, inputs: int, outputs: int) -> nn.Module:
    if config.classifier == "linear":
        return DroppedLinear(inputs, outputs, dropout=config.dropout)
    return nn.Sequential(nn.Dropout(config.dropout), NormedClassifier(inputs, 2 * inputs, outputs))


REGION_CLASSES, WORDS = "region_classes", "masked_words"
_WHOLE_IMAGE = 0  # its class


@dataclass(frozen=True, eq=False)
class AuxiliaryScores:
    """Scores of the head, and losses and metrics of the auxiliary tasks, by name."""

    scores: Tensor
    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount]


class AuxiliaryTaskModel(TaskModel):
    """A `TaskModel` with auxiliary losses.

    Args:
        num_classes: C, of regions; class 0 is that of the whole image, predicted on request. 0 predicts no classes.
        with_words: whether the model's own pre-training head predicts hidden words, and is trained.
    """

    def __init__(
        self,
        model: PreTrainingModel,
        head: TaskHead,
        *,
        num_classes: int = 0,
        with_whole_image: bool = False,
        with_words: bool = False,
    ) -> None:
        super().__init__(model, head)
        self.with_whole_image, self.with_words = with_whole_image, with_words
        self.region_class_head = None
        if num_classes:
            self.region_class_head = RegionClassHead(model.config.output_widths.region, num_classes)
            own = getattr(model, "masked_region_head", None)
            # VL-BERT's release starts the transform from that of pre-training.
            if isinstance(own, RegionClassHead):
                self.region_class_head.dense.load_state_dict(own.dense.state_dict())
        if with_words and getattr(model, "masked_word_head", None) is None:
            raise ValueError(f"{type(model).__name__} has no head for hidden words; leave hidden_words at 0")

    def beside(self, batch: VLBatch) -> AuxiliaryScores:
        """The scores and the losses of a batch that has auxiliary labels, see `loss_counts`."""
        output = self.model.encode(batch)
        terms = PreTrainingTerms()
        if self.region_class_head is not None:
            logits, labels = self._region_logits(batch, output)
            terms.losses[REGION_CLASSES] = cross_entropy(logits, labels)
            terms.metrics["region_class_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))
        if self.with_words:
            assert batch.text_labels is not None
            terms.masked_words(self.model.word_logits, output.text_states, batch.text_labels)
        return AuxiliaryScores(self.head(batch, output), terms.losses, terms.metrics)

    def forward(self, batch: VLBatch, *, beside: bool = False) -> Tensor | AuxiliaryScores:  # type: ignore[override]
        """The scores alone, or as `beside`."""
        return self.beside(batch) if beside else super().forward(batch)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        """Number of elements that each loss is averaged over, before the model runs.

        Regions in `region_target_mask` are predicted as the class that `region_targets` are 1 at, and each row's whole
        image; words by `text_labels`.
        """
        counts = {}
        if self.region_class_head is not None:
            counts[REGION_CLASSES] = count_true(batch.region_target_mask) + self.with_whole_image * batch.batch_size
        if self.with_words:
            counts[WORDS] = count_labels(batch.text_labels)
        return counts

    def _region_logits(self, batch: VLBatch, output: VLOutput) -> tuple[Tensor, Tensor]:
        """(n, C) logits and (n,) labels of all predictions."""
        predicted = batch.region_target_mask
        assert predicted is not None and self.region_class_head is not None
        states, labels = output.region_states[predicted], batch.targets_of(predicted).argmax(dim=-1)
        if self.with_whole_image:
            assert output.whole_image_state is not None
            states = torch.cat([output.whole_image_state, states])
            labels = torch.cat([labels.new_full((batch.batch_size,), _WHOLE_IMAGE), labels])
        return self.region_class_head(states), labels
