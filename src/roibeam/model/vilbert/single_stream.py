"""Single-stream baseline of ViLBERT (arXiv:1908.02265, section 4, "Baselines"; vilbert_beta vilbert/basebert.py).

"A single BERT architecture that processes both modality inputs through the same set of transformer blocks": text
pieces, then IMG and regions. Heads of pre-training are those of ViLBERT; BERT's pooler on [CLS] sums up a pair. Task
heads are those of ViLBERT's first release on BERT's widths (BaseBertForVLTasks): pooled [CLS] is read without dropout,
states of regions and pieces with it. No weights were released.

Shapes: B rows, T text pieces, R regions, E = R + 1 image elements (IMG first), D feature width, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from roibeam.model.common.bert import BertSizes, bert_encoder, bert_word_head
from roibeam.model.common.checkpoint import SENTENCE_PAIRS, bert_table, start_from_bert
from roibeam.model.common.fields import SMALL_SIZES
from roibeam.model.common.heads import DroppedLinear, Pooler, ScoreHeads, WeightNormedClassifier
from roibeam.model.common.regions import LOCATION_SIZE, elements_with_whole_image
from roibeam.model.common.transformer import BERT_NORM_EPS, Packing
from roibeam.model.inputs import AttentionMaps, VLBatch, VLOutput, check_features, check_text_alone, check_texts
from roibeam.model.layer_states import LayerStates
from roibeam.model.pretraining import ViLbertStyleModel, region_head
from roibeam.model.vilbert.fields import REGION_SEGMENT, SingleStreamFields


class SingleStreamConfig(SingleStreamFields, BertSizes):
    """The configuration of the baseline; its fields are those of `SingleStreamFields`."""

    model_type = "roibeam-vilbert-single-stream"


def single_stream_small(**overrides: Any) -> SingleStreamConfig:
    """4 layers of width 256: trains on a laptop; unpublished. Everything but the sizes is as released."""
    return SingleStreamConfig(**(dict(SMALL_SIZES) | overrides))


class SingleStreamEmbeddings(nn.Module):
    """Text as BERT embeds it; regions as Linear(feature) + Linear(location) + a segment from a table of their own."""

    def __init__(self, config: SingleStreamConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.masked_appearance = config.masked_appearance
        self.words = nn.Embedding(config.vocab_size, hidden, padding_idx=0)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.text_norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.features = nn.Linear(config.region_feature_size, hidden)
        self.locations = nn.Linear(LOCATION_SIZE, hidden)
        self.region_segments = nn.Embedding(config.num_segments, hidden)
        self.region_norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, batch: VLBatch) -> tuple[Tensor, Tensor]:
        """States (B, T + E, H) and their mask."""
        batch = batch.with_texts_of_rows()
        text = self._text(batch)
        width, weight = self.features.in_features, self.features.weight
        check_features("single-stream ViLBERT", batch.region_features, width, weight)
        elements = elements_with_whole_image(batch, count="all", masked_appearance=self.masked_appearance)
        real = Packing(elements.mask)
        regions = self.features(real.pack(elements.features)) + self.locations(real.pack(elements.locations))
        regions = real.pad(self.region_norm(regions + self.region_segments.weight[REGION_SEGMENT]))
        regions, mask = batch.images_to_rows(regions), batch.images_to_rows(elements.mask)
        states = torch.cat([text, regions], dim=1)
        return self.dropout(states), torch.cat([batch.text_mask, mask], dim=1)

    def text_alone(self, batch: VLBatch) -> Tensor:
        """(B, T, H): no image, not even IMG."""
        return self.dropout(self._text(batch.with_texts_of_rows()))

    def _text(self, batch: VLBatch) -> Tensor:
        """(B, T, H) of rows that share no text."""
        length = batch.text_ids.shape[1]
        check_texts("single-stream ViLBERT", batch.text_ids, self.words, self.positions.num_embeddings)
        text = self.words(batch.text_ids) + self.positions.weight[:length] + self.segments(batch.text_segments)
        return self.text_norm(text)


class SingleStreamForPreTraining(ViLbertStyleModel):
    """The baseline with ViLBERT's pre-training heads; losses weigh the same."""

    config_class = SingleStreamConfig
    config: SingleStreamConfig
    base_model_prefix = "single_stream"

    def __init__(self, config: SingleStreamConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.embeddings = SingleStreamEmbeddings(config)
        self.encoder = bert_encoder(config)
        self.pooler = Pooler(hidden)
        self.masked_word_head = bert_word_head(config)
        self.masked_region_head = region_head(config, hidden)
        self.match_head = DroppedLinear(hidden, 2, dropout=0.0)
        self.post_init()

    def encode(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """The sequence of `VLOutput.attention.joint` is text, IMG, regions."""
        maps = AttentionMaps(joint_regions=batch.text_ids.shape[1] + 1) if with_attention else None
        states, mask = self.embeddings(batch)
        passed: list[Tensor] | None = [] if with_states else None
        states = self.encoder(states, mask, None if maps is None else maps.joint, batch.read_positions(1), passed)
        length = batch.text_ids.shape[1]
        text, whole, regions = states.split([length, 1, batch.region_mask.shape[1]], dim=1)
        return VLOutput(
            text_states=text,
            region_states=regions,
            whole_image_state=whole[:, 0],
            pooled=self.pooler(states[:, 0]),
            attention=maps,
            layer_states=LayerStates.of_joint(passed, slice(length), slice(length + 1, None)),
        )

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """See `PreTrainingModel`; without IMG too: BERT."""
        check_text_alone("single-stream ViLBERT", batch)
        batch = batch.with_texts_of_rows()
        maps = AttentionMaps() if with_attention else None
        states = self.embeddings.text_alone(batch)
        states = self.encoder(states, batch.text_mask, None if maps is None else maps.joint, batch.read_pieces)
        return VLOutput(
            text_states=states, region_states=states[:, :0], pooled=self.pooler(states[:, 0]), attention=maps
        )

    def word_logits(self, states: Tensor) -> Tensor:
        return self.masked_word_head(states, self.embeddings.words.weight)


def state_from_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The text's embeddings, the encoder, the pooler and the masked-word head, for `load_start`.

    "The model is initialized with BERT_BASE" (section 4). BERT's next-sentence head is left out, as ViLBERT does.
    """
    return start_from_bert(bert_table("", norm="text_norm"), bert, SENTENCE_PAIRS)


class SingleStreamForTasks(ScoreHeads, SingleStreamForPreTraining):
    """The pre-training heads, answers, and one score for the pair, each region and each piece."""

    def __init__(self, config: SingleStreamConfig) -> None:
        super().__init__(config)
        hidden, dropout = config.hidden_size, config.hidden_dropout
        self.answer_head = WeightNormedClassifier(hidden, 2 * hidden, config.num_answers)
        self.pair_score = DroppedLinear(hidden, 1, dropout=0.0)
        self.region_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.word_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers."""
        return self.answer_head(output.pooled)
