"""Figures 1, 3, 4 and 5 of the paper, drawn for a model.

Figures 3 and 4: accuracy of every head over its layer, active heads large, beside the baseline and the paper's. Figures
1 and 5: the boxes of a caption's phrases, and, for the best heads of the six layers that ground phrases best, how much
every word looks at the regions of each phrase. The paper grouped regions by hand. Here a group is the regions that
cover a phrase; of the others, those with a tenth of some word's attention or more are drawn, with an asterisk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import torch

from roibeam.features.record.region_drawing import PALETTE, text_colour_on
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import printable
from roibeam.pipelines.analysis.attention_questions import ENTITY, CaptionQuestions
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.head_accuracy import HeadFigures, commonest, layers_of, paper_rows, words_at_regions
from roibeam.pipelines.analysis.probe_picture import WIDTH, Label, PhotoShape, RectangleShape, Shape, png_of, svg_text
from roibeam.pipelines.common.plot import Level, Plot, Series, plot_svg, png_file, svg_file
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, covering

# Relations of figure 4; the commonest other one takes the place of one that is missing.
_PLOTTED = ("pobj", "nsubj", "amod")


def write_plots(out: Path, entity: HeadFigures, relations: Sequence[HeadFigures]) -> list[Path]:
    """Writes heads.svg and .png; with relations also relations.svg and .png."""
    written = _write(out / "heads", [_plot(entity, "Entity grounding")])
    table = commonest(relations)
    wanted = [each for name in _PLOTTED for each in table if each.name == name]
    plotted = [*wanted, *(each for each in table if each not in wanted)][: len(_PLOTTED)]
    if plotted:
        written += _write(out / "relations", [_plot(each, f"Syntactic grounding: {each.name}") for each in plotted])
    return written


def _write(path: Path, plots: Sequence[Plot]) -> list[Path]:
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    drawn = [plot_svg(plot, f"{path.name}-{number}") for number, plot in enumerate(plots)]
    svg.write_text(svg_file(drawn), "utf-8")
    png.write_bytes(png_file(plots))
    return [svg, png]


def _plot(figures: HeadFigures, title: str) -> Plot:
    series = []
    for name, which, style, colour in (
        ("active heads", figures.active, "dots", 0),
        ("other heads", ~figures.active, "small dots", 1),
    ):
        layers, heads = which.nonzero()
        if len(layers):
            values = figures.accuracy[layers, heads].tolist()
            series.append(Series(name, (layers + 1).tolist(), values, colour, style))  # type: ignore[arg-type]
    return Plot(
        title,
        "layer",
        "accuracy (%)",
        series,
        [Level("strongest region", figures.baseline.value), *_printed(figures)],
        percent=True,
    )


def _printed(figures: HeadFigures) -> list[Level]:
    row = paper_rows().get(figures.paper_name)
    if row is None:
        return []
    return [
        Level(f"paper: best head {row.accuracy}", float(row.accuracy) / 100, 2),
        Level(f"paper: strongest {row.baseline}", float(row.baseline) / 100, 3),
    ]


NUM_PICTURES = 3
MOST_LAYERS = 6
_MOST_GROUPS = 8
_OTHERS_FROM = 0.1  # of a word's attention
_MARGIN, _INNER, _MOST_HEIGHT = 12.0, WIDTH - 24, 240.0
_WORD_WIDTH, _CELL, _STEP = 78.0, 16.0, 18.0
_LEAST_DARK = 0.1  # of a word's attention: weaker looks stay pale


@dataclass(frozen=True, eq=False)
class Group:
    """Regions displayed as one: those of a phrase, or a single other one (`is_other`)."""

    name: str
    regions: np.ndarray
    is_other: bool = False


@dataclass(frozen=True, eq=False)
class LayerLooks:
    """Attention of each word of a caption to each group, from the best head of a layer; both counted from 1.

    Attributes:
        weights: (words, groups), 0..1.
    """

    layer: int
    head: int
    weights: np.ndarray


def pictured_captions(captions: Sequence[CaptionQuestions]) -> list[CaptionQuestions]:
    """Captions with the most phrases, one of each of the first `NUM_PICTURES` images."""
    best: dict[str, CaptionQuestions] = {}
    for each in captions:
        if each.name not in best and len(best) == NUM_PICTURES:
            break
        if each.name not in best or _num_phrases(each) > _num_phrases(best[each.name]):
            best[each.name] = each
    return list(best.values())


def _num_phrases(caption: CaptionQuestions) -> int:
    return sum(question.population == ENTITY for question in caption.questions)


@torch.no_grad()
def write_pictures(
    out: Path,
    model: Any,
    samples: EvaluationSamples,
    captions: Sequence[CaptionQuestions],
    record_of: Callable[[str], RegionRecord],
    figures: HeadFigures,
    *,
    photo_of: Callable[[RegionRecord], np.ndarray | None],
    device: torch.device,
) -> list[Path]:
    """Writes picture-1.svg and .png, and so on: one for each caption.

    Args:
        figures: of phrases; they rank layers and heads.
        photo_of: (height, width, 3) uint8 BGR; None where there is none.
    """
    written = []
    for number, caption in enumerate(captions, start=1):
        record = record_of(caption.record_id)
        row = samples.seen(record, caption.sentence.text)
        output = model.encode(samples.batch([row]).to(device), with_attention=True)
        layers = layers_of(output, len(row.sample.text_ids))
        looks_LHTR = words_at_regions(layers, 0, record.num_regions).cpu().numpy()
        pieces = samples.pieces_of_words(caption.sentence.text)
        groups, looks = grouped_looks(looks_LHTR, pieces, caption, record, figures)
        shapes, height = picture_shapes(caption, record, groups, looks, photo_of(record), num_layers=len(layers))
        path = out / f"picture-{number}.svg"
        path.write_text(svg_text(shapes, height, f"What words of {caption.sentence.text!r} look at"), "utf-8")
        path.with_suffix(".png").write_bytes(png_of(shapes, height))
        written += [path, path.with_suffix(".png")]
    return written


def grouped_looks(
    looks_LHTR: np.ndarray,
    pieces: Sequence[Sequence[int]],
    caption: CaptionQuestions,
    record: RegionRecord,
    figures: HeadFigures,
) -> tuple[list[Group], list[LayerLooks]]:
    """
    Args:
        pieces: of each word.
        figures: as of `pictured_heads`.
    """
    layers, heads = pictured_heads(figures)
    by_word = [
        np.stack([looks_LHTR[layer, head, list(each)].mean(axis=0) if each else np.zeros(record.num_regions)
                  for each in pieces])
        for layer, head in zip(layers, heads, strict=True)
    ]  # fmt: skip
    groups = _groups(caption, record, by_word)
    found = [
        LayerLooks(layer + 1, head + 1, np.stack([weights[:, group.regions].sum(axis=1) for group in groups], axis=1))
        for layer, head, weights in zip(layers, heads, by_word, strict=True)
    ]
    return groups, found


def pictured_heads(figures: HeadFigures) -> tuple[list[int], list[int]]:
    """Best head of each of the `MOST_LAYERS` most accurate layers, both from 0, in the order of the layers; the first
    of equal ones."""
    best = figures.accuracy.max(axis=1)
    layers = sorted(np.argsort(-best, kind="stable")[:MOST_LAYERS].tolist())
    return layers, [int(figures.accuracy[layer].argmax()) for layer in layers]


def _groups(caption: CaptionQuestions, record: RegionRecord, by_word: Sequence[np.ndarray]) -> list[Group]:
    groups, taken = [], np.zeros(record.num_regions, bool)
    for question in caption.questions:
        if question.population == ENTITY:
            regions = np.flatnonzero(covering(record.boxes, question.boxes, GROUNDING_RULES["any"]))
            taken[regions] = True
            groups.append(Group(question.phrase, regions))
    most = np.max([weights.max(axis=0) for weights in by_word], axis=0)
    others = [int(region) for region in np.argsort(-most, kind="stable") if not taken[region]]
    groups += [
        Group(f"* region {region}", np.array([region]), True) for region in others if most[region] >= _OTHERS_FROM
    ]
    return groups[:_MOST_GROUPS]


def picture_shapes(
    caption: CaptionQuestions,
    record: RegionRecord,
    groups: Sequence[Group],
    looks: Sequence[LayerLooks],
    photo: np.ndarray | None,
    *,
    num_layers: int,
) -> tuple[list[Shape], float]:
    """The shapes of the picture, and its height.

    Args:
        num_layers: in which words look at regions; those of `looks` are among them.
        photo: (height, width, 3) uint8 BGR, of the record's size; None draws the boxes on grey.
    """
    lines = wrap(printable(caption.sentence.text, 300), 42)
    shapes: list[Shape] = [
        Label(_MARGIN, _MARGIN + 12 + 17 * row, line, 13, bold=True) for row, line in enumerate(lines)
    ]
    boxes, y = _boxes(record, groups, photo, _MARGIN + 5 + 17 * len(lines))
    matrices, y = _matrices(caption.sentence.words, groups, looks, y, num_layers)
    scale = f"Share of a word's attention; the darkest is {100 * _darkest(looks):.0f} % of it."
    notes = [scale] if len(looks) == num_layers else [scale, "These layers find phrases best."]
    below = [Label(_MARGIN, y + 12 + 15 * row, note, fill="quiet") for row, note in enumerate(notes)]
    return [*shapes, *boxes, *matrices, *below], y + 9 + 15 * len(notes)


def _boxes(
    record: RegionRecord, groups: Sequence[Group], photo: np.ndarray | None, top: float
) -> tuple[list[Shape], float]:
    """Regions of each group in its colour, and a legend of the colours."""
    scale = min(_INNER / record.width, _MOST_HEIGHT / record.height)
    left, place_of_photo = (WIDTH - record.width * scale) / 2, (record.width * scale, record.height * scale)
    shapes: list[Shape] = [
        RectangleShape(left, top, *place_of_photo, fill="frame")
        if photo is None
        else PhotoShape(left, top, *place_of_photo, photo)
    ]
    for place, group in enumerate(groups):
        for region in group.regions:
            x1, y1, x2, y2 = (float(edge) * scale for edge in record.boxes[region])
            box = (left + x1, top + y1, max(x2 - x1, 0.5), max(y2 - y1, 0.5))
            shapes.append(RectangleShape(*box, stroke=text_colour_on(_colour(place)), line=3, opacity=0.5))
            shapes.append(RectangleShape(*box, stroke=_colour(place), line=1.5))
    y = top + record.height * scale + 6
    for place, group in enumerate(groups):
        shapes += _tag(_MARGIN, y, place)
        covered = "" if len(group.regions) else ": no region covers it"
        shapes.append(Label(_MARGIN + 20, y + 10.5, printable(f"{group.name}{covered}", 50)))
        y += 16
    return shapes, y + 4


def _matrices(
    words: Sequence[str], groups: Sequence[Group], looks: Sequence[LayerLooks], top: float, num_layers: int
) -> tuple[list[Shape], float]:
    """Matrices of the layers, as many in a row as there is room for."""
    which = "each layer" if len(looks) == num_layers else f"{len(looks)} of {num_layers} layers"
    title = f"The best head of {which} (layer-head)" if groups else "No word looks at one region much"
    shapes: list[Shape] = [Label(_MARGIN, top + 14, title, 12, bold=True)]
    y, width = top + 22, len(groups) * _STEP + 10
    in_a_row = max(int((_INNER - _WORD_WIDTH) / width), 1)
    for start in range(0, len(looks) if groups else 0, in_a_row):
        for row, word in enumerate(words):
            shapes.append(Label(_MARGIN + _WORD_WIDTH - 6, y + 44 + row * _CELL, printable(word, 11), anchor="end"))
        for column, each in enumerate(looks[start : start + in_a_row]):
            shapes += _matrix(words, groups, each, _darkest(looks), _MARGIN + _WORD_WIDTH + column * width, y)
        y += 38 + len(words) * _CELL
    return shapes, y


def _darkest(looks: Sequence[LayerLooks]) -> float:
    """Share that the darkest colour stands for."""
    return max([_LEAST_DARK, *(float(each.weights.max()) for each in looks if each.weights.size)])


def _matrix(
    words: Sequence[str], groups: Sequence[Group], each: LayerLooks, darkest: float, left: float, top: float
) -> list[Shape]:
    shapes: list[Shape] = [Label(left, top + 12, f"{each.layer}-{each.head}")]
    for column, group in enumerate(groups):
        x = left + column * _STEP
        shapes += _tag(x, top + 16, column)
        for row, word in enumerate(words):
            value = float(each.weights[row, column])
            cell = (x, top + 32 + row * _CELL, _CELL, _CELL - 1)
            tip = f"{printable(word)} to {printable(group.name)}: {100 * value:.1f} %"
            shapes.append(RectangleShape(*cell, fill="frame", tooltip=tip))
            shapes.append(RectangleShape(*cell, fill="heat", opacity=min(max(value, 0.0) / darkest, 1.0), tooltip=tip))
    return shapes


def _tag(x: float, y: float, place: int) -> list[Shape]:
    colour = _colour(place)
    label = Label(x + _CELL / 2, y + 10.2, str(place + 1), fill=text_colour_on(colour), anchor="middle")
    return [RectangleShape(x, y, _CELL, 13, fill=colour), label]


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]
