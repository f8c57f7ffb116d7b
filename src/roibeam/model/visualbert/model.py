"""VisualBERT (arXiv:1908.03557) and its task models, as released (uclanlp/visualbert; transformers models/visual_bert).

One sequence through BERT: text pieces, then regions; padding of the text stays between the two. A region is its
projected feature with a segment and a position of its own tables (section 3.2 of the paper: f_o + f_s + f_p). Regions
are never masked: `VLBatch.masked_regions` is not read, nor are boxes (wider features may hold them). Task models are
those of section 4.

Sections are those of arXiv:1908.03557. "What Does BERT with Vision Look At?" (ACL 2020) prints sections 3, 4 and 5.1 as
its appendices A, B and C.

Shapes: B rows, T text pieces, R regions, A aligned pieces, D feature width, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.model.common.bert import BertSizes, VLPreTrainedModel, bert_encoder, bert_layer, bert_word_head
from roibeam.model.common.fields import SMALL_SIZES
from roibeam.model.common.heads import DroppedLinear, PhraseToRegions, Pooler
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.common.transformer import BERT_NORM_EPS, Packing
from roibeam.model.inputs import AttentionMaps, VLBatch, VLOutput, check_features, check_text_alone, check_texts
from roibeam.model.layer_states import EMBEDDINGS, LayerStates, layer_names
from roibeam.model.pretraining import PreTrainingModel, PreTrainingTerms, count_labels, log_odds
from roibeam.model.task_heads import phrase_states, read_summary
from roibeam.model.visualbert.fields import VisualBertFields, visualbert_fields

MATCH_LOGIT = 1  # UCLA's data code: 1 = the caption describes the image (0 in the transformers documentation)


class VisualBertConfig(VisualBertFields, BertSizes):
    """The configuration of a VisualBERT; its fields are those of `VisualBertFields`."""

    model_type = "roibeam-visualbert"
    reads_whole_image: ClassVar[bool] = False  # of the batch; see model/end_to_end.py


def visualbert_config(preset: str = "ucla-vqa", **overrides: Any) -> VisualBertConfig:
    """A published VisualBERT of BERT-base size, one of `PRESETS`; `overrides` are fields that differ."""
    return VisualBertConfig(**(visualbert_fields(preset) | overrides))


def visualbert_small(**overrides: Any) -> VisualBertConfig:
    """4 layers of width 256: trains on a laptop. Everything but the sizes is as in `visualbert_config`."""
    return VisualBertConfig(**(dict(SMALL_SIZES) | overrides))


class ClassedRegions(nn.Module):
    """A region's feature and the embedding of its class, projected to one vector: R2C's last layer of its detector.

    Source: rowanz/r2c utils/detector.py (`object_embed`, `obj_downsample`): dropout, linear, ReLU.
    """

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__()
        self.classes = nn.Embedding(config.num_region_classes, config.region_class_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.dense = nn.Linear(config.region_feature_size + config.region_class_size, config.region_mix_size)

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """(P, region_mix_size) of (P, D) and (P,) long."""
        classed = torch.cat([features, self.classes(classes).to(features.dtype)], dim=-1)
        return functional.relu(self.dense(self.dropout(classed)))


class VisualBertEmbeddings(nn.Module):
    """Word + segment + position; projected feature + segment + position; one LayerNorm and dropout over all rows."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        padding = config.padding_piece if config.padding_piece >= 0 else None
        self.first_region_segment = config.first_region_segment
        self.alignment = config.alignment
        self.words = nn.Embedding(config.vocab_size, hidden, padding_idx=padding)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.classed = ClassedRegions(config) if config.num_region_classes else None
        self.region_width = config.region_feature_size
        width = config.region_feature_size if self.classed is None else config.region_mix_size
        self.projection = nn.Linear(width, hidden)
        self.region_positions = nn.Embedding(config.max_position_embeddings, hidden)  # only row 0 is ever read
        self.region_segments = nn.Embedding(config.num_segments, hidden)
        self.norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, batch: VLBatch, packing: Packing) -> Tensor:
        """(P, H), packed by `packing` of the T + R positions of each row; `batch` shares no text."""
        length = batch.text_ids.shape[1]
        check_texts("VisualBERT", batch.text_ids, self.words, self.positions.num_embeddings)
        text = self.words(batch.text_ids) + self.segments(batch.text_segments) + self.positions.weight[:length]
        check_features("VisualBERT", batch.region_features, self.region_width, self.projection.weight)
        features = batch.region_features.masked_fill(~batch.region_mask[..., None], 0.0)
        real_regions = Packing(batch.region_mask)
        segments = torch.zeros_like(batch.region_mask, dtype=torch.long)
        if batch.region_images is not None:
            segments = batch.region_images
        regions = real_regions.pad(self.projection(self._measured(real_regions, features, batch.region_classes)))
        regions = regions + self.region_segments(segments + self.first_region_segment)
        regions = batch.images_to_rows(regions + self.region_positions.weight[0])
        if batch.aligned_words is not None:
            regions = regions + self._aligned_positions(batch.aligned_words)
        return self.dropout(self.norm(packing.pack(torch.cat([text, regions], dim=1))))

    def _measured(self, real: Packing, features_IRD: Tensor, classes_IR: Tensor | None) -> Tensor:
        """(P, D) of the real regions, or (P, region_mix_size) with their classes."""
        packed = real.pack(features_IRD)
        if self.classed is None:
            return packed
        if classes_IR is None:
            raise ValueError("VisualBERT: num_region_classes needs VLBatch.region_classes")
        return self.classed(packed, real.pack(classes_IR))

    def _aligned_positions(self, words_BRA: Tensor) -> Tensor:
        """(B, R, H): position embeddings of the aligned pieces, 0 where there are none."""
        real = words_BRA >= 0
        positions = self.positions(words_BRA.clamp(min=0)) * real[..., None]
        total = positions.sum(dim=2)
        return total / real.sum(dim=2, keepdim=True).clamp(min=1) if self.alignment == "mean" else total


class VisualBertPreTrainedModel(VLPreTrainedModel):
    """Initialisation and file handling shared by the bare model and the models with heads."""

    config_class = VisualBertConfig
    config: VisualBertConfig
    base_model_prefix = "visualbert"


class VisualBertModel(VisualBertPreTrainedModel):
    """The encoder: a `VLBatch` in, a `VLOutput` out. Labels in the batch are not read."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        self.embeddings = VisualBertEmbeddings(config)
        self.encoder = bert_encoder(config)
        self.late_layer = None if config.early_fusion else bert_layer(config)
        self.pooler = Pooler(config.hidden_size)
        self.post_init()
        if config.copy_text_tables:
            self.copy_text_tables()

    @torch.no_grad()
    def copy_text_tables(self) -> None:
        """Copies the text's tables to the region tables, as UCLA starts from BERT; call it again after loading BERT."""
        self.embeddings.region_positions.weight.copy_(self.embeddings.positions.weight)
        self.embeddings.region_segments.weight.copy_(self.embeddings.segments.weight)

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """The sequence of `VLOutput.attention.joint` is text, regions.

        Without early fusion the encoder's maps are in `VLOutput.attention.text`, `joint` holds the last layer's, and
        regions have two states: embeddings, last layer.
        """
        batch, length = batch.with_texts_of_rows(), batch.text_ids.shape[1]
        maps = AttentionMaps(joint_regions=length) if with_attention else None
        packing = Packing(torch.cat([batch.text_mask, batch.rows_region_mask], dim=1))
        states = self.embeddings(batch, packing)
        joint_maps = None if maps is None else maps.joint
        passed: list[Tensor] | None = [] if with_states else None
        read = None if with_states else batch.read_positions()
        if self.late_layer is None:
            states = self.encoder.packed(states, packing, joint_maps, read, passed)
        else:
            text, regions = packing.pad(states).split([length, batch.region_mask.shape[1]], dim=1)
            text = self.encoder(text, batch.text_mask, None if maps is None else maps.text, passed=passed)
            together = packing.pack(torch.cat([text, regions], dim=1))
            states = self.late_layer(together, packing, joint_maps, None if self.drops else read)
        states = packing.pad(states)
        layers = None
        if passed is not None and self.late_layer is None:
            layers = LayerStates.of_joint(map(packing.pad, passed), slice(length), slice(length, None))
        elif passed is not None:
            layers = _late_states(passed, regions, states)
        return VLOutput(
            text_states=states[:, :length],
            region_states=states[:, length:],
            pooled=self.pooler(states[:, 0]),
            attention=maps,
            layer_states=layers,
        )


def _late_states(passed_BTH: Sequence[Tensor], regions_BRH: Tensor, last_BSH: Tensor) -> LayerStates:
    """Layer states of a model whose regions join the text in its last layer."""
    made, length = LayerStates(), passed_BTH[0].shape[1]
    made.add_regions(EMBEDDINGS, regions_BRH)
    for name, states in zip(layer_names("layer"), [*passed_BTH, last_BSH[:, :length]], strict=False):
        made.add_text(name, states)
    made.add_regions(made.text_layers[-1], last_BSH[:, length:])
    return made


class VisualBertForPreTraining(VisualBertPreTrainedModel, PreTrainingModel):
    """VisualBERT with its two objectives (section 3.3): masked words, and whether a sentence describes the image."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        self.visualbert = VisualBertModel(config)
        self.masked_word_head = bert_word_head(config)
        self.match_head = DroppedLinear(config.hidden_size, 2, dropout=0.0) if config.with_match_head else None
        self.post_init()

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """See `PreTrainingModel`: BERT."""
        check_text_alone("VisualBERT", batch)
        return self.visualbert(batch, with_attention=with_attention)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        counts = {"masked_words": count_labels(batch.text_labels)}
        if self.match_head is not None and batch.match_labels is not None:
            counts["matching"] = count_labels(batch.match_labels)
        return counts

    def word_logits(self, states: Tensor) -> Tensor:
        return self.masked_word_head(states, self.visualbert.embeddings.words.weight)

    def region_logits(self, states: Tensor) -> None:
        """None: VisualBERT predicts nothing of regions."""

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        return None if self.match_head is None else log_odds(self.match_head(output.pooled), MATCH_LOGIT)

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        """Without `match_labels` there is no matching loss: pre-training on a task's own text predicts words only."""
        terms = PreTrainingTerms()
        terms.masked_words(self.word_logits, output.text_states, self.needed(batch, "text_labels"))
        if self.match_head is not None and batch.match_labels is not None:
            terms.matching(self.match_head(output.pooled), batch.match_labels, match_logit=MATCH_LOGIT)
        return terms.output()


class VisualBertForLabels(VisualBertPreTrainedModel):
    """One linear layer on a state: answers of VQA, two classes of NLVR2, one score for each choice of VCR."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        self.visualbert = VisualBertModel(config)
        self.label_head = DroppedLinear(config.hidden_size, config.num_answers, dropout=config.hidden_dropout)
        self.post_init()

    def from_pooled(self, output: VLOutput) -> Tensor:
        """(B, num_answers) from the pooled [CLS] (NLVR2, VCR)."""
        return self.label_head(output.pooled)

    def from_mask_piece(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, num_answers) from the piece before the last real one (VQA: the text ends with `? [MASK] [SEP]`)."""
        return self.label_head(read_summary(batch, output, "mask_piece"))


class VisualBertForGrounding(VisualBertForPreTraining):
    """Scores of the regions for a phrase (Flickr30k Entities); keeps the pre-training heads, as its checkpoints do."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.grounding_head = PhraseToRegions(hidden, hidden, hidden // config.num_attention_heads)
        self.post_init()

    def score_regions(self, batch: VLBatch, output: VLOutput, phrase_positions: Tensor) -> Tensor:
        """
        Args:
            phrase_positions: (B, P) long, the text piece that stands for each phrase, or T + n for region n, which is
                where the release looks for a word that is cut; -1 for no phrase, whose scores have no meaning.
        Returns:
            (B, P, R), before the softmax.
        """
        return self.grounding_head(
            phrase_states(output, phrase_positions), output.region_states, batch.rows_region_mask
        )
