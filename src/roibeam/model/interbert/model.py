"""InterBERT (arXiv:2003.13198) by its paper and its release (black4321/InterBERT), and its task heads.

One stream, then two (figure 1): the joint layers, "single-stream interaction module"; then layers of each side, the
"two-stream extraction module": [IMG regions (SEP) | text] -> joint layers -> image layers | text layers.

Task heads are plain linear layers (InterBertForVLTasks); all stand in every checkpoint, a task uses one. VCR reads the
pair's score (section 3.2). Retrieval has no head, "the model reuses the output layer of the pretraining ITM task"
(3.4): the release gives each of four pairs the two-way loss of pre-training, `binary_loss` of `match_log_odds`.

Shapes: B rows, T text pieces, R regions, E image elements (IMG, R regions, [SEP] where there is one), D feature width,
H hidden width, P pooled width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.model.common.bert import (
    BertSizes,
    VLPreTrainedModel,
    bert_encoder,
    bert_layer,
    bert_word_head,
    image_layer_sizes,
)
from roibeam.model.common.heads import DroppedLinear, NormedClassifier, ScoreHeads, TwoStreamPooler
from roibeam.model.common.losses import SumCount
from roibeam.model.common.regions import LOCATION_SIZE, elements_with_whole_image
from roibeam.model.common.transformer import ACTIVATIONS, BERT_NORM_EPS, Packing, TransformerEncoder, TransformerLayer
from roibeam.model.inputs import (
    AttentionMaps,
    OutputWidths,
    VLBatch,
    VLOutput,
    check_features,
    check_text_alone,
    check_texts,
)
from roibeam.model.interbert.fields import SMALL, InterBertFields, interbert_fields
from roibeam.model.layer_states import LayerStates
from roibeam.model.pretraining import PreTrainingTerms, ViLbertStyleModel, region_head


class InterBertConfig(InterBertFields, BertSizes):
    """The configuration of an InterBERT; its fields are those of `InterBertFields`."""

    model_type = "roibeam-interbert"

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.hidden_size, self.pooled_size)


def interbert_config(preset: str = "release", **overrides: Any) -> InterBertConfig:
    """A published InterBERT of BERT-base width, one of `PRESETS`; `overrides` are fields that differ."""
    return InterBertConfig(**(interbert_fields(preset) | overrides))


def interbert_small(**overrides: Any) -> InterBertConfig:
    """2 joint layers, then 2 and 2, of width 256: trains on a laptop; unpublished. The rest is as released."""
    return InterBertConfig(**(dict(SMALL) | overrides))


PADDING_PIECE = 0


class InterBertTextEmbeddings(nn.Module):
    """BERT's: word + position + segment, LayerNorm, dropout (section 2.2, "Text embedding and image embedding")."""

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, hidden, padding_idx=PADDING_PIECE)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, batch: VLBatch) -> Tensor:
        """(B, T, H)."""
        length = batch.text_ids.shape[1]
        check_texts("InterBERT", batch.text_ids, self.words, self.positions.num_embeddings)
        states = self.words(batch.text_ids) + self.positions.weight[:length] + self.segments(batch.text_segments)
        return self.dropout(self.norm(states))


class FeatureMlp(nn.Module):
    """Two linear layers with an activation between: "we transform the object representations [...] through MLP"."""

    def __init__(self, feature_size: int, hidden_size: int, activation: str) -> None:
        super().__init__()
        self.dense = nn.Linear(feature_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(features)))


class InterBertRegionEmbeddings(nn.Module):
    """Projected feature + Linear(location), LayerNorm, dropout, with IMG first: the release.

    The paper adds a segment and a position, and ends the image with a [SEP] (sections 2.1 and 2.2), without their
    tables; here they are the image's own. A masked region's location stays, its feature is zero or that
    of blanked pixels.
    """

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__()
        self.region_width = features = config.region_feature_size
        hidden = config.hidden_size
        self.masked_appearance = config.masked_appearance
        self.features: nn.Module = (
            nn.Linear(features, hidden)
            if config.region_projection == "linear"
            else FeatureMlp(features, hidden, config.hidden_activation)
        )
        self.locations = nn.Linear(LOCATION_SIZE, hidden)
        self.segment = nn.Embedding(1, hidden) if config.with_region_segment else None
        self.positions = nn.Embedding(config.max_position_embeddings, hidden) if config.with_region_positions else None
        self.sep = nn.Embedding(1, hidden) if config.with_image_sep else None
        self.norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.region_embedding_dropout)

    def forward(self, batch: VLBatch) -> tuple[Tensor, Tensor]:
        """States (I, E, H) and their mask (I, E) bool."""
        check_features("InterBERT", batch.region_features, self.region_width, self.locations.weight)
        elements = elements_with_whole_image(batch, count="all", masked_appearance=self.masked_appearance)
        mask, real = elements.mask, Packing(elements.mask)
        features, locations = real.pack(elements.features), real.pack(elements.locations)
        states = real.pad(self.features(features) + self.locations(locations))
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        if self.sep is not None:
            # It stands after padding, but its place is right after the row's last region.
            rows = len(mask)
            states = torch.cat([states, self.sep.weight.to(states.dtype).expand(rows, 1, -1)], dim=1)
            places = torch.cat([places, mask.sum(dim=1, keepdim=True)], dim=1)
            mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
        if self.segment is not None:
            states = states + self.segment.weight[0]
        if self.positions is not None:
            if mask.shape[1] > self.positions.num_embeddings:
                raise ValueError(
                    f"InterBERT: image of {mask.shape[1]} elements; this model has positions for "
                    f"{self.positions.num_embeddings}"
                )
            states = states + self.positions(places)
        return self.dropout(self.norm(states)), mask


class StatePairPooler(nn.Module):
    """ReLU(dense(pair)) of the product or sum of both first states (section 2.3, "Image-text matching").

    "We first element-wisely multiply the image and text representations [...] and send the generated representation
    through the MLP": this layer and the match head. One side alone is summed up by the same layer.
    """

    def __init__(self, hidden_size: int, pooled_size: int, *, fusion: str) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, pooled_size)
        self.fusion = fusion

    def forward(self, text_state: Tensor, image_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, P) of the text, of the image and of the pair."""
        pair = text_state * image_state if self.fusion == "product" else text_state + image_state
        return self.pool_text(text_state), torch.relu(self.dense(image_state)), torch.relu(self.dense(pair))

    def pool_text(self, text_state: Tensor) -> Tensor:
        """(B, P) of the text alone."""
        return torch.relu(self.dense(text_state))


class PassedStates(NamedTuple):
    """Input of the first layer of each stack, then output of each layer (B, S, H); None if not kept."""

    joint: list[Tensor] | None
    image: list[Tensor] | None
    text: list[Tensor] | None

    def layers(self, text: slice, regions: slice) -> LayerStates | None:
        """`text` is its place in the joint sequence, `regions` theirs there and among the image's elements."""
        made = LayerStates.of_joint(self.joint, text, regions, "joint")
        if made is None or self.image is None or self.text is None:
            return None
        for number, states in enumerate(self.image[1:]):
            made.add_regions(f"image {number}", states[:, regions])
        for number, states in enumerate(self.text[1:]):
            made.add_text(f"text {number}", states)
        return made


class InterBertPreTrainedModel(VLPreTrainedModel):
    """Initialisation and file handling shared by the bare model and the models with heads."""

    config_class = InterBertConfig
    config: InterBertConfig
    base_model_prefix = "interbert"


class InterBertModel(InterBertPreTrainedModel):
    """The encoder: a `VLBatch` in, a `VLOutput` out. Labels and targets in the batch are not read."""

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(config)
        self.text_embeddings = InterBertTextEmbeddings(config)
        self.region_embeddings = InterBertRegionEmbeddings(config)
        self.joint = bert_encoder(config)
        self.text = TransformerEncoder(bert_layer(config) for _ in range(config.text_num_hidden_layers))
        self.image = TransformerEncoder(
            TransformerLayer(**image_layer_sizes(config, config.hidden_size))
            for _ in range(config.image_num_hidden_layers)
        )
        hidden, pooled = config.hidden_size, config.pooled_size
        self.pooler: TwoStreamPooler | StatePairPooler = (
            TwoStreamPooler(hidden, hidden, pooled, fusion=config.fusion)
            if config.pair_from == "pooled"
            else StatePairPooler(hidden, pooled, fusion=config.fusion)
        )
        self.post_init()

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """Attention fills `joint` (IMG, regions, [SEP], text), `text` and `image` of `VLOutput.attention`."""
        batch = batch.with_texts_of_rows()
        image, image_mask = map(batch.images_to_rows, self.region_embeddings(batch))
        maps = AttentionMaps(joint_text=image_mask.shape[1], joint_regions=1) if with_attention else None
        states = torch.cat([image, self.text_embeddings(batch)], dim=1)  # section 2.2: all-attention (equations 1-4)
        passed = PassedStates([], [], []) if with_states else PassedStates(None, None, None)
        mask = torch.cat([image_mask, batch.text_mask], dim=1)
        regions = slice(1, 1 + batch.region_mask.shape[1])
        read_text = read = read_joint = None
        if batch.read_regions is not None and batch.read_pieces is not None and not self.drops:
            read_text = batch.read_pieces
            read = functional.pad(batch.read_regions, (1, image_mask.shape[1] - regions.stop))
            read[:, 0] = True
            if not len(self.image.layers) and not len(self.text.layers):
                read_joint = torch.cat([read, batch.read_pieces], dim=1)
        states = self.joint(states, mask, None if maps is None else maps.joint, read_joint, passed.joint)
        image, text = states.split([image_mask.shape[1], batch.text_mask.shape[1]], dim=1)
        image = self.image(image, image_mask, None if maps is None else maps.image, read, passed.image)
        text = self.text(text, batch.text_mask, None if maps is None else maps.text, read_text, passed.text)
        pooled_text, pooled_image, pair = self.pooler(text[:, 0], image[:, 0])
        return VLOutput(
            text_states=text,
            region_states=image[:, regions],
            whole_image_state=image[:, 0],
            pooled=pair,
            pooled_text=pooled_text,
            pooled_image=pooled_image,
            attention=maps,
            layer_states=passed.layers(slice(image_mask.shape[1], None), regions),
        )

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """A text without any image, not even IMG: joint layers on the text, then the text's (section 3.6, GLUE).

        `pooled` and `pooled_text` are both [CLS], pooled.
        """
        check_text_alone("InterBERT", batch)
        maps = AttentionMaps() if with_attention else None
        text = self.text_embeddings(batch)
        text = self.joint(text, batch.text_mask, None if maps is None else maps.joint)
        text = self.text(text, batch.text_mask, None if maps is None else maps.text)
        pooled = self.pooler.pool_text(text[:, 0])
        return VLOutput(text_states=text, region_states=text[:, :0], pooled=pooled, pooled_text=pooled, attention=maps)


class InterBertForPreTraining(InterBertPreTrainedModel, ViLbertStyleModel):
    """InterBERT with its pre-training heads (section 2.3); the losses weigh the same, as in the release.

    Masked words count in all pairs, masked regions by `region_loss_pairs`: in matched pairs only, in sum and in number,
    as modules.py, `masked_img_loss`.
    """

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(config)
        self.interbert = InterBertModel(config)
        self.masked_word_head = bert_word_head(config)
        self.masked_region_head = region_head(config, config.hidden_size)
        self.match_head = DroppedLinear(config.pooled_size, 2, dropout=config.pair_dropout)
        self.post_init()

    def word_logits(self, states: Tensor) -> Tensor:
        return self.masked_word_head(states, self.interbert.text_embeddings.words.weight)

    def counted_regions(self, batch: VLBatch) -> Tensor | None:
        predicted, match = batch.region_target_mask, batch.match_labels
        if predicted is None or match is None:
            return None
        return predicted if self.config.region_loss_pairs == "all" else predicted & match.eq(1)[:, None]

    def add_region_loss(
        self, terms: PreTrainingTerms, head: NormedClassifier, batch: VLBatch, states_BRH: Tensor
    ) -> None:
        targets, _ = self.needed(batch, "region_targets"), self.needed(batch, "match_labels")
        matched, loss = self.counted_regions(batch), self.config.region_loss
        assert matched is not None
        if self.config.region_labels == "hard":
            classes = batch.targets_of(matched)[:, :-1].argmax(dim=-1)  # background is no category
            terms.classified_regions(head(states_BRH[matched]), classes)
            return
        terms.masked_regions(head, states_BRH, batch.targets_of(matched), matched, loss=loss)
        if loss == "regression":
            # The release divides by the number of regions, not by the width of their features too.
            mean = terms.losses["masked_regions"]
            terms.losses["masked_regions"] = SumCount(mean.total * targets.shape[-1], mean.count)


class InterBertForTasks(ScoreHeads, InterBertForPreTraining):
    """The pre-training heads, answers, and one score for the pair, each region and each piece."""

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(config)
        pooled, hidden, dropout = config.pooled_size, config.hidden_size, config.pair_dropout
        self.answer_head = DroppedLinear(pooled, config.num_answers, dropout=dropout)
        self.pair_score = DroppedLinear(pooled, 1, dropout=dropout)
        self.region_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.word_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of a label for the pair."""
        return self.answer_head(output.pooled)
