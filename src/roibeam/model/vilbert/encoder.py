"""Configuration and encoder of ViLBERT (arXiv:1908.02265, section 2.2): two streams and their co-attentions.

`TextGatedLayer` is the image layer of "dynamic attention" (facebookresearch/vilbert-multi-task vilbert.py): regions
attend to regions in the light of the text, whose mean state scales every number of the queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from roibeam.model.common.bert import BertSizes, bert_layer, image_layer_sizes
from roibeam.model.common.transformer import (
    BERT_NORM_EPS,
    Attention,
    CheckpointedLayer,
    FeedForward,
    Packing,
    TransformerLayer,
)
from roibeam.model.inputs import AttentionMaps, OutputWidths
from roibeam.model.layer_states import EMBEDDINGS
from roibeam.model.vilbert.fields import SMALL, ViLbertFields, vilbert_fields


class ViLbertConfig(ViLbertFields, BertSizes):
    """The configuration of a ViLBERT; its fields are those of `ViLbertFields`."""

    model_type = "roibeam-vilbert"

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.image_hidden_size, self.co_attention_size)


def vilbert_config(preset: str = "release", *, depth: int = 6, **overrides: Any) -> ViLbertConfig:
    """A published ViLBERT of BERT-base size, one of `PRESETS`; `overrides` are fields that differ.

    Args:
        depth: number of co-attentions and of image layers, one of `DEPTHS`. The last `depth` text layers follow one
            (vilbert_beta config/bert_base_<n>layer_<n>conect.json).
    """
    return ViLbertConfig(**(vilbert_fields(preset, depth=depth) | overrides))


def vilbert_small(**overrides: Any) -> ViLbertConfig:
    """4 text layers and 2 image layers of width 256. Everything but the sizes is as in the first release."""
    return ViLbertConfig(**(dict(SMALL) | overrides))


class TextGatedLayer(TransformerLayer):
    """An image layer whose queries and keys are multiplied by 1 + sigmoid(linear(mean state of the text))."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(**image_layer_sizes(config, config.image_hidden_size))
        self.query_gate = nn.Linear(config.hidden_size, config.image_hidden_size)
        self.key_gate = nn.Linear(config.hidden_size, config.image_hidden_size)

    def gate(self, mean_text: Tensor) -> Tensor:
        """(B, I) for the mean text states (B, H).

        A number of a query only ever meets the same number of a key, so both gates may act on the query.
        """
        return (1 + torch.sigmoid(self.query_gate(mean_text))) * (1 + torch.sigmoid(self.key_gate(mean_text)))

    def forward(  # type: ignore[override]
        self, states_PI: Tensor, packing: Packing, maps: list[Tensor] | None, query_factor: Tensor
    ) -> Tensor:
        """See `TransformerLayer.forward`; `query_factor` (P, I) is the `gate` of each region's row."""
        self.check_maps(maps)
        found = self.attention(states_PI, packing, maps=maps, query_factor=query_factor)
        states_PI = self.attention_norm(states_PI + found)
        return self.feed_forward_norm(states_PI + self.feed_forward(states_PI))


class EncoderStep(NamedTuple):
    """One step of the encoder: a layer of "text", of "image", or of "co"."""

    kind: str
    layer: int


def layer_plan(config: ViLbertConfig) -> tuple[EncoderStep, ...]:
    """The order of the layers: for each co-attention those before it, then itself, then the rest.

    Text comes before images, except in the rest: with `dynamic_attention` an image layer reads the current text.
    """
    steps: list[EncoderStep] = []
    text_done = image_done = 0
    pairs = zip(config.text_co_attention, config.image_co_attention, strict=True)
    for number, (text_layer, image_layer) in enumerate(pairs):
        steps += [EncoderStep("text", index) for index in range(text_done, text_layer)]
        steps += [EncoderStep("image", index) for index in range(image_done, image_layer)]
        if config.with_co_attention:
            steps.append(EncoderStep("co", number))
        text_done, image_done = text_layer, image_layer
    steps += [EncoderStep("image", index) for index in range(image_done, config.image_num_hidden_layers)]
    steps += [EncoderStep("text", index) for index in range(text_done, config.num_hidden_layers)]
    return tuple(steps)


@dataclass(frozen=True, eq=False)
class Stream:
    """One side on its way through the encoder: packed states (P, width) and their packing."""

    states: Tensor
    packing: Packing

    def rows(self, count: int) -> Stream:
        """One row, repeated for `count` rows of the other stream."""
        return self.take(torch.zeros(count, dtype=torch.long, device=self.states.device))

    def take(self, rows: Tensor) -> Stream:
        """The rows of these numbers (long), in their order, with repeats."""
        packing = Packing(self.packing.mask[rows])
        return Stream(packing.pack(self.packing.pad(self.states)[rows]), packing)

    def mean(self) -> Tensor:
        """(B, width), over real positions; 0 for a row without any."""
        mask = self.packing.mask
        total = self.packing.pad(self.states).masked_fill(~mask[..., None], 0.0).sum(dim=1)
        return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


class PassedStreams(NamedTuple):
    """Input of each stream's first layer, then its states after each layer that changed it, with that layer's name."""

    text: list[tuple[str, Stream]]
    image: list[tuple[str, Stream]]

    def add(self, kind: str, layer: str, stream: Stream) -> None:
        """Adds states of the stream "text" or "image"."""
        (self.text if kind == "text" else self.image).append((layer, stream))


class CoAttentionLayer(CheckpointedLayer):
    """Co-TRM (figure 2b): each stream attends to the other; then residual, LayerNorm and feed-forward of its own."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__()
        text, image = config.hidden_size, config.image_hidden_size
        heads, inner = config.co_attention_num_heads, config.co_attention_size
        # The dropout on the weights is that of the stream of the keys (vilbert.py, BertBiAttention).
        self.text_attention = Attention(
            text,
            heads,
            context_size=image,
            inner_size=inner,
            attention_dropout=config.image_attention_dropout,
            dropout=config.hidden_dropout,
        )
        self.text_attention_norm = nn.LayerNorm(text, eps=BERT_NORM_EPS)
        self.text_feed_forward = FeedForward(
            text, config.intermediate_size, dropout=config.hidden_dropout, activation=config.hidden_activation
        )
        self.text_feed_forward_norm = nn.LayerNorm(text, eps=BERT_NORM_EPS)
        self.image_attention = Attention(
            image,
            heads,
            context_size=text,
            inner_size=inner,
            attention_dropout=config.attention_dropout,
            dropout=config.image_hidden_dropout,
        )
        self.image_attention_norm = nn.LayerNorm(image, eps=BERT_NORM_EPS)
        self.image_feed_forward = FeedForward(
            image,
            config.image_intermediate_size,
            dropout=config.image_hidden_dropout,
            activation=config.image_hidden_activation,
        )
        self.image_feed_forward_norm = nn.LayerNorm(image, eps=BERT_NORM_EPS)

    def forward(self, text: Stream, image: Stream, maps: AttentionMaps | None) -> tuple[Stream, Stream]:
        self.check_maps(maps)
        text_maps, image_maps = (None, None) if maps is None else (maps.text_to_image, maps.image_to_text)
        seen = self.text_attention(text.states, text.packing, image.states, image.packing, text_maps)
        read = self.image_attention(image.states, image.packing, text.states, text.packing, image_maps)
        text_states = self.text_attention_norm(text.states + seen)
        image_states = self.image_attention_norm(image.states + read)
        text_states = self.text_feed_forward_norm(text_states + self.text_feed_forward(text_states))
        image_states = self.image_feed_forward_norm(image_states + self.image_feed_forward(image_states))
        return replace(text, states=text_states), replace(image, states=image_states)

    def text_alone(self, text: Stream) -> Stream:
        """The text's half without an image: nothing is added to its states before LayerNorm and feed-forward."""
        states = self.text_attention_norm(text.states)
        states = self.text_feed_forward_norm(states + self.text_feed_forward(states))
        return replace(text, states=states)


def image_layer(config: ViLbertConfig) -> TransformerLayer:
    """One layer of the image stream alone."""
    return TransformerLayer(**image_layer_sizes(config, config.image_hidden_size))


class TwoStreamEncoder(nn.Module):
    """The layers of both streams and the co-attentions between them, run by `layer_plan`."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__()
        make = TextGatedLayer if config.dynamic_attention else image_layer
        self.fixed_layers = {"text": config.fixed_text_layers, "image": config.fixed_image_layers}
        self.text_layers = nn.ModuleList(bert_layer(config) for _ in range(config.num_hidden_layers))
        self.image_layers = nn.ModuleList(make(config) for _ in range(config.image_num_hidden_layers))
        co_attentions = config.text_co_attention if config.with_co_attention else ()
        self.co_layers = nn.ModuleList(CoAttentionLayer(config) for _ in co_attentions)
        plan = layer_plan(config)
        self.meeting = {"co", "image"} if config.dynamic_attention else {"co"}
        first = next((place for place, step in enumerate(plan) if step.kind in self.meeting), len(plan))
        self.apart, self.together = plan[:first], plan[first:]

    def read(self, kind: str, stream: Stream, maps: list[Tensor] | None, passed: PassedStreams | None = None) -> Stream:
        """The layers of one stream, "text" or "image", that come before the streams first meet."""
        layers = self.text_layers if kind == "text" else self.image_layers
        if passed is not None:
            passed.add(kind, EMBEDDINGS, stream)
        for step in self.apart:
            if step.kind == kind:
                with self._gradients(step):
                    states = layers[step.layer](stream.states, stream.packing, maps)
                stream = replace(stream, states=states)
                if passed is not None:
                    passed.add(kind, f"{kind} {step.layer}", stream)
        return stream

    def forward(
        self,
        text: Stream,
        image: Stream,
        maps: AttentionMaps | None,
        passed: PassedStreams | None = None,
        read: Mapping[str, Tensor] | None = None,
    ) -> tuple[Stream, Stream]:
        """
        Args:
            read: by stream, (B, S) bool, positions whose last states are read. A stream's last layer leaves out the
                others, which get 0, unless a co-attention follows it. Not with `maps` or `passed`.
        """
        for place, step in enumerate(self.together, 1):
            goes_on = any(later.kind in {step.kind, *self.meeting} for later in self.together[place:])
            if read is not None and not goes_on:
                text, image = self._last(step, text, image, read)
                continue
            text, image = self._after(step, text, image, maps)
            for kind, stream in (("text", text), ("image", image)):
                if passed is not None and step.kind in (kind, "co"):
                    passed.add(kind, f"{step.kind} {step.layer}", stream)
        return text, image

    def _last(
        self, step: EncoderStep, text: Stream, image: Stream, read: Mapping[str, Tensor]
    ) -> tuple[Stream, Stream]:
        """Result of `_after` where it is read, for the last layer of a stream; all of it for a layer of another
        kind."""
        layers, stream = (self.text_layers, text) if step.kind == "text" else (self.image_layers, image)
        layer = None if step.kind == "co" else layers[step.layer]
        if not isinstance(layer, TransformerLayer) or isinstance(layer, TextGatedLayer):
            return self._after(step, text, image, None)
        with self._gradients(step):
            stream = replace(stream, states=layer(stream.states, stream.packing, None, read[step.kind]))
        return (stream, image) if step.kind == "text" else (text, stream)

    def _after(
        self, step: EncoderStep, text: Stream, image: Stream, maps: AttentionMaps | None
    ) -> tuple[Stream, Stream]:
        with self._gradients(step):
            if step.kind == "co":
                text, image = self.co_layers[step.layer](text, image, maps)
            elif step.kind == "text":
                text_maps = None if maps is None else maps.text
                text = replace(text, states=self.text_layers[step.layer](text.states, text.packing, text_maps))
            else:
                layer, image_maps = self.image_layers[step.layer], None if maps is None else maps.image
                # The text enters here and nowhere else before the first co-attention.
                gate: tuple[Tensor, ...] = ()
                if isinstance(layer, TextGatedLayer):
                    gate = (layer.gate(text.mean())[image.packing.rows],)
                image = replace(image, states=layer(image.states, image.packing, image_maps, *gate))
        return text, image

    def text_alone(self, text: Stream, maps: list[Tensor] | None) -> Stream:
        """Every layer that the text runs through, its halves of the co-attentions too, without an image."""
        for step in (*self.apart, *self.together):
            with self._gradients(step):
                if step.kind == "co":
                    text = self.co_layers[step.layer].text_alone(text)  # type: ignore[operator]
                elif step.kind == "text":
                    text = replace(text, states=self.text_layers[step.layer](text.states, text.packing, maps))
        return text

    def _gradients(self, step: EncoderStep) -> AbstractContextManager[object]:
        """Context without a graph for the fixed layers, and for what lies below them."""
        fixed = step.layer < self.fixed_layers.get(step.kind, 0)
        return torch.no_grad() if fixed else nullcontext()
