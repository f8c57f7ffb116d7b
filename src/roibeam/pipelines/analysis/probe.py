"""Probe of a pre-trained model with one image and one text: words, regions, the match, and attention between them.

A model with its region encoder gets one photo, with hidden regions blanked, and then works as any other model.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import short_repr
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.inputs import AttentionMaps, VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.batches.sample import as_float32
from roibeam.pipelines.data.compatibility import check_task, check_vocabulary, check_width
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


class PhotoModel:
    """A joint model as the `PreTrainingModel` that a probe needs, for batches of one row with boxes of this photo.

    Args:
        joint: in evaluation mode, with pre-training heads.
        photo: (height, width, 3) uint8, channel order B, G, R.
    """

    def __init__(self, joint: EndToEndModel, photo: np.ndarray) -> None:
        self._joint, self._photo = joint, photo
        self._model = cast(PreTrainingModel, joint.model)

    @property
    def device(self) -> torch.device:
        """Device of the model: batches belong there too."""
        return next(self._joint.parameters()).device

    @property
    def config(self) -> Any:
        return self._model.config

    def encode(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """Encodes as `PreTrainingModel.encode`, with features of the photo; the batch's masked regions are hidden."""
        made = photo_inputs(
            [self._photo],
            [batch.region_boxes[0].cpu().numpy()],
            [batch.masked_regions[0].cpu().numpy()],
            region_encoder_of(self._joint),
            self._joint.choices,
        )
        regions: dict[str, Any] = dict(made.regions)
        whole = replace(batch, **regions).to(self.device)
        images = made.images.to(self.device)
        return self._joint.encode(whole, images, with_attention=with_attention, with_states=with_states)

    def word_logits(self, states: Tensor) -> Tensor:
        return self._model.word_logits(states)

    def region_logits(self, states: Tensor) -> Tensor | None:
        return self._model.region_logits(states)

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        return self._model.match_log_odds(output)


HIDDEN_REGIONS = 5
GUESSES = 5


@dataclass(frozen=True)
class Guess:
    """One answer and its probability, 0 to 1."""

    name: str
    probability: float


@dataclass(frozen=True)
class MaskedWord:
    """A [MASK] of the text.

    Attributes:
        position: among the pieces, [CLS] is 0.
        guesses: best first.
    """

    position: int
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class HiddenRegion:
    """A region whose content the model did not see.

    Attributes:
        number: its place in the record.
        guesses: best first.
    """

    number: int
    seen_as: str
    guesses: tuple[Guess, ...]


@dataclass(frozen=True, eq=False)
class WordsToRegions:
    """Share of each piece's attention that goes to each region.

    Attributes:
        weights: (T, R) float, rows of at most 1; the rest goes to words and to the whole image.
        layer: counted from 1 among the layers that have such weights; heads: whose mean it is, counted from 1.
    """

    weights: np.ndarray
    layer: int
    num_layers: int
    heads: tuple[int, ...]
    num_heads: int

    @property
    def equal_share(self) -> float:
        """Share of a word's attention per region, on the mean of all words, of a model that prefers none."""
        return float(self.weights.mean())

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """
    Attributes:
        pieces: the text as the model reads it.
        words: one for each [MASK].
        regions: one for each region that was hidden, by itself, in turn.
        regions_remark: why there are none, else "".
        match: probability that the text belongs to the image; None without such a head.
        attention: None for a model without attention from words to regions, or an image without regions.
    """

    pieces: tuple[str, ...]
    words: tuple[MaskedWord, ...]
    regions: tuple[HiddenRegion, ...]
    regions_remark: str
    match: float | None
    attention: WordsToRegions | None

    __repr__ = short_repr


@torch.no_grad()
def probe(
    model: Any,
    record: RegionRecord,
    text: str,
    tokenizer: CaptionTokenizer,
    names: Names,
    *,
    hide: Sequence[int] | None = None,
    layer: int | None = None,
    head: int | None = None,
    top: int = GUESSES,
    task: int | None = None,
) -> ProbeResult:
    """Runs the model once on the pair, and once for each region that is hidden.

    Args:
        model: a `PreTrainingModel`, or a `PhotoModel` of the record's photo, in evaluation mode.
        text: with [MASK], in any case, where words are to be guessed.
        hide: places of regions to hide, each by itself; None takes those with the best scores.
        layer, head: of the attention, counted from 1; None is the last layer, and the mean over heads.
        top: guesses for each word and region.
        task: number of the task token, for a model that has such tokens.
    """
    # A tokenizer knows its own spelling only: [mask] would be three pieces, and nothing predicted.
    encoded = tokenizer.encode(re.sub(r"\[mask\]", "[MASK]", text, flags=re.IGNORECASE))
    check_fit(model.config, record, tokenizer, len(encoded.ids))
    check_task(model.config, task)
    hide = _chosen_regions(record, hide)
    batch = pair_batch(record, torch.from_numpy(encoded.ids), task).to(model.device)
    output: VLOutput = model.encode(batch, with_attention=True)
    words = []
    for position in np.flatnonzero(encoded.ids == tokenizer.mask_id):
        guesses = _best(model.word_logits(output.text_states[0, position]), top)
        words.append(MaskedWord(int(position), tuple(Guess(tokenizer.piece(number), p) for number, p in guesses)))
    log_odds = model.match_log_odds(output)
    regions, remark = _hidden_regions(model, batch, record, hide, names, top)
    return ProbeResult(
        pieces=tuple(tokenizer.piece(int(number)) for number in encoded.ids),
        words=tuple(words),
        regions=regions,
        regions_remark=remark,
        match=None if log_odds is None else float(log_odds[0].sigmoid()),
        attention=words_to_regions(output, len(encoded.ids), record.num_regions, layer=layer, head=head),
    )


def check_fit(config: Any, record: RegionRecord, tokenizer: CaptionTokenizer, num_pieces: int) -> None:
    """Checks that record, tokenizer and text fit the model. Raises ValueError when the model was made for other
    features or another vocabulary, or the text is too long."""
    check_width(config, record)
    check_vocabulary(config, tokenizer, "name the tokenizer it was trained with")
    if num_pieces > config.max_position_embeddings - 2:
        raise ValueError(
            f"the text has {num_pieces} pieces; this model takes {config.max_position_embeddings - 2}, shorten it"
        )


def pair_batch(record: RegionRecord, text_ids: Tensor, task: int | None = None) -> VLBatch:
    """One row: a text of (T,) pieces, all regions of a record and its feature of the whole image; nothing masked."""
    count, whole = record.num_regions, record.image_feature
    return VLBatch(
        text_ids=text_ids[None],
        text_mask=torch.ones(1, len(text_ids), dtype=torch.bool),
        text_segments=torch.zeros(1, len(text_ids), dtype=torch.long),
        region_features=as_float32(record.features)[None],
        region_boxes=torch.from_numpy(np.array(record.boxes, dtype=np.float32))[None],
        region_mask=torch.ones(1, count, dtype=torch.bool),
        image_hw=torch.tensor([[record.height, record.width]], dtype=torch.float32),
        masked_regions=torch.zeros(1, count, dtype=torch.bool),
        global_features=None if whole is None else as_float32(whole)[None],
        task_ids=None if task is None else torch.tensor([task]),
        sample_ids=(record.image_id,),
    )


def words_to_regions(
    output: VLOutput, num_pieces: int, num_regions: int, *, layer: int | None = None, head: int | None = None
) -> WordsToRegions | None:
    """Returns the weights (T, R) of the first row. Raises ValueError for a layer or head that there is not."""
    maps = output.attention
    assert maps is not None
    found = maps_of_words(maps, with_task=output.task_state is not None, num_pieces=num_pieces)
    if not found or not num_regions:
        return None
    number = len(found) if layer is None else layer
    if not 1 <= number <= len(found):
        raise ValueError(f"layer {number}: words attend to regions in layers 1 to {len(found)} of this model")
    heads_BHTK, first_region = found[number - 1]
    heads_TK = heads_BHTK[0]
    num_heads = len(heads_TK)
    if head is not None and not 1 <= head <= num_heads:
        raise ValueError(f"head {head}: this layer has heads 1 to {num_heads}")
    chosen = heads_TK if head is None else heads_TK[head - 1 : head]
    weights = chosen.mean(dim=0)[:, first_region : first_region + num_regions]
    heads = tuple(range(1, num_heads + 1)) if head is None else (head,)
    return WordsToRegions(weights.float().cpu().numpy(), number, len(found), heads, num_heads)


def maps_of_words(maps: AttentionMaps, *, with_task: bool, num_pieces: int) -> list[tuple[Tensor, int]]:
    """Maps of the layers in which words look at regions: weights (B, heads, T, keys), and the first region's key."""
    if maps.joint:
        words = slice(maps.joint_text, maps.joint_text + num_pieces)
        return [(each[:, :, words], maps.joint_regions) for each in maps.joint]
    rows = [0, *range(2, num_pieces + 1)] if with_task else list(range(num_pieces))
    return [(each[:, :, rows], 1) for each in maps.text_to_image]  # IMG comes before the regions


def _chosen_regions(record: RegionRecord, hide: Sequence[int] | None) -> list[int]:
    if hide is None:
        return [int(number) for number in np.argsort(-record.class_scores, kind="stable")[:HIDDEN_REGIONS]]
    wrong = [number for number in hide if not 0 <= number < record.num_regions]
    if wrong:
        raise ValueError(f"region {wrong[0]}: record {record.image_id!r} has regions 0 to {record.num_regions - 1}")
    return list(hide)


def _hidden_regions(
    model: Any, batch: VLBatch, record: RegionRecord, hide: Sequence[int], names: Names, top: int
) -> tuple[tuple[HiddenRegion, ...], str]:
    if not hide:
        return (), "no regions"
    if getattr(model.config, "masked_appearance", "") == "pixels" and not isinstance(model, PhotoModel):
        return (), "this model hides regions in the photo's pixels, which stored features do not have"
    found = []
    for number in hide:
        masked = batch.masked_regions.clone()
        masked[0, number] = True
        output = model.encode(dataclasses.replace(batch, masked_regions=masked))
        logits = model.region_logits(output.region_states[0, number])
        if logits is None:
            return (), "this model predicts no classes of regions"
        guesses = [Guess(names.of_model(label, len(logits)), p) for label, p in _best(logits, top)]
        found.append(HiddenRegion(number, names.of_detector(int(record.class_ids[number])), tuple(guesses)))
    return tuple(found), ""


def _best(logits: Tensor, top: int) -> list[tuple[int, float]]:
    probabilities, numbers = logits.float().softmax(dim=-1).topk(min(top, logits.shape[-1]))
    return list(zip(numbers.tolist(), probabilities.tolist(), strict=True))
