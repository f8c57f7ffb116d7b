"""Accuracy of attention heads: the region that each head looks at most, accuracy by head and layer, beside the paper's.

The model runs once on each caption; maps are never kept. The baseline answers the same questions. The paper's figures
are those of its section 3.1 and Table 2.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import plural
from roibeam.model.inputs import VLOutput
from roibeam.pipelines.analysis.attention_questions import ENTITY, CaptionQuestions
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.probe import maps_of_words
from roibeam.pipelines.analysis.requests import AttentionRequest
from roibeam.pipelines.common.statistics.paper_figures import paper_figures
from roibeam.pipelines.common.statistics.verdict import Bootstrap
from roibeam.pipelines.finetuning.metrics.grounding import RANKS, UPPER_BOUND, GroundingRule, covering


@dataclass(frozen=True, eq=False)
class Looks:
    """Attention of all heads. N questions, L layers in which words look at regions, H heads of each.

    Attributes:
        images: names, in the order of their numbers.
        image: (N,) int, number of the question's image.
        population: (N,) of text.
        types: of each question's phrase.
        hits: (N, L, H, K) bool, whether one of the 1, 5, 10 regions (`RANKS`) that the head looks at most covers the
            phrase.
        blind_hit: (N, L, H) bool, the same of the region that the head looks at most on the mean of all pieces: the
            level of a head that likes some regions, whatever the word.
        mass: (N, L, H) float32, share of the attention that goes to regions, 0..1.
        strongest: (N,) float64, whether the region with the best detection score covers the phrase: the baseline. With
            equal scores, the share that does.
        anyone: (N,) float64, the share of all regions that cover the phrase: the level of a region drawn by lot.
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
        """(N, L, H) bool, hits of the one region that the head looks at most."""
        return np.asarray(self.hits[..., 0])


@torch.no_grad()
def head_looks(
    model: Any,
    samples: EvaluationSamples,
    captions: Sequence[CaptionQuestions],
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
            kept.append(_question_results(weights, each, record, rule, share))
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
    """Returns `maps_of_words`; ValueError where there are none."""
    assert output.attention is not None
    layers = maps_of_words(output.attention, with_task=output.task_state is not None, num_pieces=num_pieces)
    if not layers:
        raise ValueError("no word of this model attends to a region: it has no layer with attention from text to image")
    return layers


def words_at_regions(layers: Sequence[tuple[Tensor, int]], place: int, num_regions: int) -> Tensor:
    """(L, H, T, R) attention of words to regions, of a row of a batch."""
    return torch.stack([each[place, :, :, first : first + num_regions].float() for each, first in layers])


def _question_results(
    weights: Tensor, caption: CaptionQuestions, record: RegionRecord, rule: GroundingRule, share: float
) -> list[np.ndarray]:
    """Args:
    weights: (L, H, T, R).
    """
    questions = caption.questions
    pieces = torch.zeros(len(questions), weights.shape[2], device=weights.device)
    for row, question in enumerate(questions):
        pieces[row, list(question.pieces)] = 1 / len(question.pieces)
    looked = pieces @ weights  # (L, H, Q, R)
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


PAPER = "What Does BERT with Vision Look At?"
RECIPE = "visualbert-task-flickr"  # of the run that the paper analyses
PAPER_SETUP = (
    f"the paper's: VisualBERT, 12 layers of 12 heads, trained on COCO and Flickr30k (--recipe {RECIPE}), 1,000 images "
    f"of val, relations of AllenNLP's parser; the best of all heads for phrases, of active heads for relations"
)
_GROUNDING = ("entity grounding", "syntactic grounding of ")
_LAYERS, _HEADS, _IMAGES, _SPLIT = 12, 12, 1000, "val"


@dataclass(frozen=True)
class PaperRow:
    """Row of the paper, as printed.

    Attributes:
        name: `ENTITY`, or the relation as the paper calls it.
        baseline, accuracy: in percent.
        head: of that accuracy, as layer-head; "" where it is not named.
    """

    name: str
    where: str
    baseline: str
    accuracy: str
    head: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns JSON with shares, as `HeadFigures.to_json`."""
        baseline, accuracy = (round(float(each) / 100, 6) for each in (self.baseline, self.accuracy))
        return {"where": self.where, "baseline": baseline, "accuracy": accuracy, "head": self.head or None}


@cache
def paper_rows() -> dict[str, PaperRow]:
    """Rows by name, in the paper's order."""
    found: dict[str, dict[str, str]] = {}
    for each in paper_figures():
        if each.recipe == RECIPE and each.task.startswith(_GROUNDING):
            name = ENTITY if each.task == _GROUNDING[0] else each.task.removeprefix(_GROUNDING[1])
            row = found.setdefault(name, {"where": each.table})
            row[{"best head": "head"}.get(each.metric, each.metric.partition(", ")[0])] = each.printed
    return {name: PaperRow(name, **row) for name, row in found.items()}


def differences(request: AttentionRequest, model: str, *, layers: int, heads: int, images: int) -> list[str]:
    """Differences of a request and a model from the paper's setup.

    Args:
        model: its class, such as "VisualBertForPreTraining".
        layers, heads: in which words look at regions.
    """
    found = [] if model.startswith("VisualBert") else [model]
    if (layers, heads) != (_LAYERS, _HEADS):
        found.append(f"{plural(layers, 'layer')} of {plural(heads, 'head')}")
    if images != _IMAGES or request.split != _SPLIT:
        found.append(f"{plural(images, 'image')} of {request.split or 'all splits'}")
    if request.parses is not None:
        found.append(f"relations of {'spaCy' if str(request.parses) == 'spacy' else request.parses.name}")
    options = {"rules": "any", "word": "last", "max_regions": None}
    return found + [
        f"--{name.replace('_', '-')} {getattr(request, name)}"
        for name, usual in options.items()
        if (getattr(request, name) or None) != usual
    ]


ACTIVE = 0.2  # share of the attention that an active head gives to regions, on the mean (section 3.1)
MOST_RELATIONS = 10  # the paper's table has the ten commonest
# The paper's names of relations that spaCy's models, or Universal Dependencies, spell otherwise.
PAPER_NAMES = {"compound": "nn", "nummod": "num", "acl": "partmod", "relcl": "rcmod", "obj": "dobj"}
ABOVE_FOR_ANY_WORD = "above the baseline, whatever the word"
ABOVE, BELOW, UNDECIDED = "above the baseline", "below the baseline", "no clear difference from the baseline"
TOO_FEW = "too few to tell"
# Intervals are over images. With fewer they are too narrow: with six that agree there is none at all.
LEAST_IMAGES = 30


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 95 % interval over images; NaN where nothing was counted."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HalfChoice:
    """Result of the head that is best on one half of the images, on the other half.

    Attributes:
        layer, head: counted from 1; None when the half has no question.
        chosen: accuracy where it was chosen; other: on the other half; baseline: there.
    """

    layer: int | None
    head: int | None
    chosen: float
    other: float
    baseline: float


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """Figures of one population of questions.

    Attributes:
        name: "entity", or a relation as the parses call it; paper_name: as the paper does.
        baseline: accuracy of the region with the best detection score; by_lot: of a region drawn by lot; ceiling: share
            of questions that any region answers.
        uniform: share of regions among all that could be looked at.
        accuracy, mass: (L, H), of every head; active: (L, H) bool.
        layer, head: of the best active head, counted from 1; of all heads where none is active.
        best: its accuracy, on the same images on which it was chosen.
        recalls: of its 1, 5 and 10 regions, "R@1" and so on, and the ceiling, over all questions and by type of phrase.
        blind: its accuracy with one look for all words of a caption.
        halves: the same choice on one half, judged on the other, both ways.
        crossed: accuracy of the best heads of the halves on the other half each, over all images.
        difference: `crossed` less the baseline, images drawn in pairs.
        word_difference: `crossed` less the accuracy of the same heads with one look for all words of a caption: a head
            that only likes some regions has none.
        verdict: from the intervals of both; `TOO_FEW` below `LEAST_IMAGES`.
    """

    name: str
    paper_name: str
    questions: int
    images: int
    baseline: Interval
    by_lot: float
    ceiling: float
    uniform: float
    accuracy: np.ndarray
    mass: np.ndarray
    active: np.ndarray
    layer: int
    head: int
    best: Interval
    recalls: dict[str, float]
    blind: float
    halves: tuple[HalfChoice, HalfChoice]
    crossed: float
    difference: Interval
    word_difference: Interval
    verdict: str

    @property
    def best_of_all(self) -> tuple[int, int]:
        """Layer and head, counted from 1, whether active or not, as the paper names them for phrases."""
        layer, head = _best(self.accuracy, np.ones_like(self.active))
        return layer + 1, head + 1

    @property
    def best_by_layer(self) -> list[float]:
        return [float(each) for each in self.accuracy.max(axis=1)]

    def to_json(self) -> dict[str, Any]:
        best = {"layer": self.layer, "head": self.head, "layer_from_0": self.layer - 1, "head_from_0": self.head - 1}
        paper = paper_rows().get(self.paper_name)
        return {
            "name": self.name,
            "paper_name": self.paper_name,
            "paper": None if paper is None else paper.to_json(),
            "questions": self.questions,
            "images": self.images,
            "baseline": _json(self.baseline),
            "region_by_lot": _number(self.by_lot),
            "ceiling": _number(self.ceiling),
            "uniform_mass": _number(self.uniform),
            "best_head": {**best, "active": bool(self.active[self.layer - 1, self.head - 1]), **_json(self.best)},
            "best_of_all_heads": dict(zip(("layer", "head"), self.best_of_all, strict=True)),
            "best_head_recalls": {name: _number(value) for name, value in self.recalls.items()},
            "best_head_whatever_the_word": _number(self.blind),
            "best_by_layer": [_number(each) for each in self.best_by_layer],
            "mean_by_layer": [_number(float(each)) for each in self.accuracy.mean(axis=1)],
            "halves": [
                {name: _number(each) if isinstance(each, float) else each for name, each in vars(half).items()}
                for half in self.halves
            ],
            "best_of_the_other_half": _number(self.crossed),
            "difference_from_baseline": _json(self.difference),
            "difference_from_any_word": _json(self.word_difference),
            "verdict": self.verdict,
            "active_heads": int(self.active.sum()),
            "accuracy": _rows(self.accuracy),
            "mass_on_regions": _rows(self.mass),
            "active": self.active.tolist(),
        }


def _json(interval: Interval) -> dict[str, float | None]:
    return {"value": _number(interval.value), "low": _number(interval.low), "high": _number(interval.high)}


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _rows(values_LH: np.ndarray) -> list[list[float | None]]:
    return [[_number(float(each)) for each in row] for row in values_LH]


def relations_of(looks: Looks, without: str) -> list[str]:
    """Names of relations, the commonest first, equally common ones by name."""
    counts = Counter(looks.population.tolist())
    counts.pop(without, None)
    return [name for name, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]


def head_figures(looks: Looks, population: str, *, seed: int) -> HeadFigures:
    """
    Args:
        population: that has at least one question.
        seed: of the halves and of the intervals.
    """
    chosen = looks.population == population
    hit, mass, image = looks.hit[chosen], looks.mass[chosen], looks.image[chosen]
    strongest = looks.strongest[chosen]
    num_images = len(looks.images)
    # Halves of all images, so that every population has the same ones.
    is_first = np.zeros(num_images, bool)
    is_first[np.random.default_rng(seed).permutation(num_images)[: num_images // 2]] = True
    accuracy, mass_LH = hit.mean(axis=0), mass.mean(axis=0)
    active = mass_LH > ACTIVE
    layer, head = _best(accuracy, active)
    halves, chosen_hit, chosen_blind = _halves(hit, looks.blind_hit[chosen], mass, strongest, is_first[image])
    bootstrap = Bootstrap(num_images, seed=seed)
    counts = np.bincount(image, minlength=num_images)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(image, weights=values, minlength=num_images)

    def less(other: np.ndarray) -> Interval:
        ends = bootstrap.difference(summed(chosen_hit), counts, summed(other), counts)
        return Interval(float(chosen_hit.mean() - other.mean()), *ends)

    difference, word_difference = less(strongest), less(chosen_blind)
    return HeadFigures(
        name=population,
        paper_name=PAPER_NAMES.get(population, population),
        questions=len(image),
        images=len(np.unique(image)),
        baseline=Interval(float(strongest.mean()), *bootstrap.ratio(summed(strongest), counts)),
        by_lot=float(looks.anyone[chosen].mean()),
        ceiling=float(looks.covered[chosen].mean()),
        uniform=float(looks.uniform[chosen].mean()),
        accuracy=accuracy,
        mass=mass_LH,
        active=active,
        layer=layer + 1,
        head=head + 1,
        best=Interval(float(accuracy[layer, head]), *bootstrap.ratio(summed(hit[:, layer, head]), counts)),
        recalls=_recalls(looks, chosen, layer, head),
        blind=float(looks.blind_hit[chosen][:, layer, head].mean()),
        halves=halves,
        crossed=float(chosen_hit.mean()),
        difference=difference,
        word_difference=word_difference,
        verdict=_verdict(len(np.unique(image)), difference, word_difference),
    )


def _recalls(looks: Looks, chosen: np.ndarray, layer: int, head: int) -> dict[str, float]:
    """Recalls by name, as `grounding_measures` names them."""
    places = np.flatnonzero(chosen)
    columns = {f"R@{rank}": looks.hits[places, layer, head, column] for column, rank in enumerate(RANKS)}
    found = {}
    for name, values in {**columns, UPPER_BOUND: looks.covered[places]}.items():
        found[name] = float(values.mean())
        for kind in sorted({kind for place in places for kind in looks.types[place]}):
            found[f"{name} {kind}"] = float(values[[kind in looks.types[place] for place in places]].mean())
    return found


def _verdict(images: int, difference: Interval, word_difference: Interval) -> str:
    if images < LEAST_IMAGES:
        return TOO_FEW
    if difference.low > 0:
        return ABOVE if word_difference.low > 0 else ABOVE_FOR_ANY_WORD
    return BELOW if difference.high < 0 else UNDECIDED


def _best(accuracy: np.ndarray, active: np.ndarray) -> tuple[int, int]:
    """Layer and head of the best head, from 0; the first of equal ones."""
    among = np.where(active, accuracy, -1.0) if active.any() else accuracy
    layer, head = np.unravel_index(int(among.argmax()), among.shape)
    return int(layer), int(head)


def _halves(
    hit: np.ndarray, blind_hit: np.ndarray, mass: np.ndarray, strongest: np.ndarray, is_first: np.ndarray
) -> tuple[tuple[HalfChoice, HalfChoice], np.ndarray, np.ndarray]:
    """Returns the choices, and (N,) hits of each question's head and (N,) hits of one look for all words. The head is
    chosen on the half that the question is not in (on all questions where that half has none)."""
    chosen_hit, chosen_blind = np.empty(len(hit)), np.empty(len(hit))
    choices: list[HalfChoice] = []
    for half in (is_first, ~is_first):
        rows = half if half.any() else ~half
        layer, head = _best(hit[rows].mean(axis=0), mass[rows].mean(axis=0) > ACTIVE)
        found = hit[:, layer, head].astype(np.float64)
        chosen_hit[~half], chosen_blind[~half] = found[~half], blind_hit[~half, layer, head]
        means = [
            float(each.mean()) if len(each) else math.nan for each in (found[half], found[~half], strongest[~half])
        ]
        is_there = bool(half.any())
        choices.append(HalfChoice(layer + 1 if is_there else None, head + 1 if is_there else None, *means))
    return (choices[0], choices[1]), chosen_hit, chosen_blind


def commonest(figures: Sequence[HeadFigures]) -> list[HeadFigures]:
    """Returns the ten commonest relations, as in the paper's table."""
    return sorted(figures, key=lambda each: -each.questions)[:MOST_RELATIONS]


def beside_paper(entity: HeadFigures, relations: Sequence[HeadFigures]) -> list[tuple[PaperRow, HeadFigures | None]]:
    """Pairs the paper's rows with the commonest relation of that name; phrases alone without relations.

    Args:
        relations: the commonest first.
    """
    rows = paper_rows()
    figures = {each.paper_name: each for each in [*reversed(relations), entity]}
    return [(row, figures.get(name)) for name, row in rows.items() if relations or name == entity.name]
