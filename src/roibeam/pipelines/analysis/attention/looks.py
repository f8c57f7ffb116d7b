"""The model runs once on each caption; of each question is kept at which region every head looks most, and how much of
its attention goes to regions. Maps are never kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.inputs import VLOutput
from roibeam.pipelines.analysis.attention.questions import AskedCaption
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.probing.probe import maps_of_words
from roibeam.pipelines.finetuning.metrics.grounding import RANKS, GroundingRule, covering


@dataclass(frozen=True, eq=False)
class Looks:
    """What all heads did. N questions, L layers in which words look at regions, H heads of each.

    Attributes:
        images: names, in the order of their numbers.
        image: (N,) int, number of the question's image.
        population: (N,) of text.
        types: of each question's phrase.
        hits: (N, L, H, K) bool, whether one of the 1, 5, 10 regions (`RANKS`) that the head looks at most covers the
            phrase.
        blind_hit: (N, L, H) bool, the same of the region that the head looks at most on the mean of all pieces: what a
            head would reach that likes some regions, whatever the word.
        mass: (N, L, H) float32, share of the attention that goes to regions, 0..1.
        strongest: (N,) float64, whether the region with the best detection score covers the phrase: the baseline. Of
            several with that score, the share that does.
        anyone: (N,) float64, the share of all regions that cover the phrase: what a region drawn by lot reaches.
        covered: (N,) bool, whether any region does.
        uniform: (N,) float64, the share of regions among all that could be looked at.
    """

    images: tuple[str, ...]
    image: np.ndarray
    population: np.ndarray
    types: tuple[tuple[str, ...], ...]
    hits: np.ndarray
    blind_hit: np.ndarray
    mass: np.ndarray
    strongest: np.ndarray
    anyone: np.ndarray
    covered: np.ndarray
    uniform: np.ndarray

    @property
    def hit(self) -> np.ndarray:
        """(N, L, H) bool, of the one region that the head looks at most."""
        return np.asarray(self.hits[..., 0])


@torch.no_grad()
def head_looks(
    model: Any,
    samples: EvaluationSamples,
    captions: Sequence[AskedCaption],
    record_of: Callable[[str], RegionRecord],
    rule: GroundingRule,
    *,
    batch_size: int,
    device: torch.device,
    progress: Callable[[], object] = lambda: None,
) -> Looks:
    """
    Args:
        model: a `PreTrainingModel` in evaluation mode.
        captions: at least one, those of an image beside one another.
        record_of: by id.
        progress: is called after each caption.
    Raises:
        ValueError: for a model in which no word looks at a region, or whose attention is no number.
    """
    kept: list[list[np.ndarray]] = []
    for start in range(0, len(captions), batch_size):
        part = captions[start : start + batch_size]
        records = [record_of(each.record_id) for each in part]
        rows = [samples.seen(record, each.sentence.text) for record, each in zip(records, part, strict=True)]
        output: VLOutput = model.encode(samples.batch(rows).to(device), with_attention=True)
        layers = layers_of(output, max(len(row.sample.text_ids) for row in rows))
        for place, (row, record, each) in enumerate(zip(rows, records, part, strict=True)):
            num_pieces = len(row.sample.text_ids)
            joint = bool(output.attention is not None and output.attention.joint)
            share = record.num_regions / (record.num_regions + (num_pieces if joint else 1))
            weights = words_at_regions(layers, place, record.num_regions)[:, :, :num_pieces]
            kept.append(_judged(weights, each, record, rule, share))
            progress()
    names = tuple(dict.fromkeys(each.name for each in captions))
    number_of = {name: number for number, name in enumerate(names)}
    found = [np.concatenate(each) for each in zip(*kept, strict=True)]
    hits, blind_hit, mass, strongest, anyone, covered, uniform = found
    return Looks(
        images=names,
        image=np.array([number_of[each.name] for each in captions for _ in each.questions], np.int64),
        population=np.array([question.population for each in captions for question in each.questions]),
        types=tuple(question.types for each in captions for question in each.questions),
        hits=hits, blind_hit=blind_hit, mass=mass, strongest=strongest, anyone=anyone, covered=covered, uniform=uniform,
    )  # fmt: skip


def layers_of(output: VLOutput, num_pieces: int) -> list[tuple[Tensor, int]]:
    """As `maps_of_words`; ValueError where there are none."""
    assert output.attention is not None
    layers = maps_of_words(output.attention, with_task=output.task_state is not None, num_pieces=num_pieces)
    if not layers:
        raise ValueError("no word of this model looks at a region: it has no layer with attention from text to image")
    return layers


def words_at_regions(layers: Sequence[tuple[Tensor, int]], place: int, num_regions: int) -> Tensor:
    """(L, H, T, R) of a row of a batch."""
    return torch.stack([each[place, :, :, first : first + num_regions].float() for each, first in layers])


def _judged(
    weights: Tensor, caption: AskedCaption, record: RegionRecord, rule: GroundingRule, share: float
) -> list[np.ndarray]:
    """Args:
    weights: (L, H, T, R).
    """
    questions = caption.questions
    asks = torch.zeros(len(questions), weights.shape[2], device=weights.device)
    for row, question in enumerate(questions):
        asks[row, list(question.pieces)] = 1 / len(question.pieces)
    looked = asks @ weights  # (L, H, Q, R)
    if not bool(torch.isfinite(looked).all()):
        raise ValueError(f"image {caption.name!r}, caption {caption.number}: attention that is no number (NaN)")
    at = looked.topk(min(RANKS[-1], record.num_regions), dim=-1).indices.cpu().numpy()  # (L, H, Q, at most 10)
    mass = looked.sum(dim=-1).cpu().numpy()
    covers = np.stack([covering(record.boxes, question.boxes, rule) for question in questions])  # (Q, R)
    found_at = covers[np.arange(len(questions))[:, None], at].transpose(2, 0, 1, 3)
    hits = np.stack([found_at[..., :rank].any(axis=-1) for rank in RANKS], axis=-1)
    blind = covers[:, weights.mean(dim=2).argmax(dim=-1).cpu().numpy()]
    strongest = covers[:, record.class_scores == record.class_scores.max()].mean(axis=1)
    of_all = np.full(len(questions), share)
    found = [hits, blind, mass.transpose(2, 0, 1), strongest, covers.mean(axis=1), covers.any(axis=1), of_all]
    return [np.asarray(each) for each in found]
