"""Figures 1, 3, 4 and 5 of the paper, drawn for a model.

Figures 3 and 4: accuracy of every head over its layer, active heads large, beside the baseline and the paper's. Figures
1 and 5: the boxes of a caption's phrases, and, for the best heads of the six layers that ground phrases best, how much
every word looks at the regions of each phrase. The paper grouped regions by hand. Here a group is the regions that
cover a phrase; of the others, those with a tenth of some word's attention or more are drawn, with an asterisk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import printable
from roibeam.pipelines.analysis.attention_questions import ENTITY, CaptionQuestions
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.head_accuracy import HeadFigures, commonest, layers_of, paper_rows, words_at_regions
from roibeam.pipelines.analysis.probe_picture import CELL, FONT, INNER, MARGIN, Sheet, colour_of, tag
from roibeam.pipelines.common.plot import Level, Plot, Series, picture_png, picture_svg, plot_svg, png_file, svg_file
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
_MOST_HEIGHT, _WORD_WIDTH = 240.0, 78.0
_LEAST_DARK = 0.1  # of a word's attention: weaker looks stay pale


@dataclass(frozen=True, eq=False)
class Group:
    """Regions displayed as one: those of a phrase, or a single other one."""

    name: str
    regions: np.ndarray


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

    def num_phrases(caption: CaptionQuestions) -> int:
        return sum(question.population == ENTITY for question in caption.questions)

    best: dict[str, CaptionQuestions] = {}
    for each in captions:
        if each.name not in best and len(best) == NUM_PICTURES:
            break
        if each.name not in best or num_phrases(each) > num_phrases(best[each.name]):
            best[each.name] = each
    return list(best.values())


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
        sheet = partial(draw_looks, caption, record, groups, looks, photo_of(record), num_layers=len(layers))
        path = out / f"picture-{number}.svg"
        path.write_text(picture_svg(sheet, label=f"Regions that words of {caption.sentence.text!r} attend to"), "utf-8")
        path.with_suffix(".png").write_bytes(picture_png(sheet))
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
    groups += [Group(f"* region {region}", np.array([region])) for region in others if most[region] >= _OTHERS_FROM]
    return groups[:_MOST_GROUPS]


def draw_looks(
    caption: CaptionQuestions,
    record: RegionRecord,
    groups: Sequence[Group],
    looks: Sequence[LayerLooks],
    photo: np.ndarray | None,
    colours: Mapping[str, str],
    *,
    num_layers: int,
) -> Sheet:
    """The picture of one caption.

    Args:
        num_layers: in which words look at regions; those of `looks` are among them.
        photo, colours: of `Sheet`.
    """
    sheet = Sheet(colours)
    sheet.text(printable(caption.sentence.text, 300), 13, "text", fontweight="bold")
    sheet.y += 5
    regions = [(int(region), colour_of(place)) for place, group in enumerate(groups) for region in group.regions]
    sheet.photo(record, photo, regions, _MOST_HEIGHT)
    sheet.y += 6
    names = sheet.axes(MARGIN, INNER, (CELL - 1) * len(groups))
    names.set(xlim=(0, INNER), ylim=(max(len(groups), 1), 0))
    for place, group in enumerate(groups):
        tag(names, CELL / 2, place + 0.5, place + 1, colour_of(place), ha="center", va="center")
        covered = "" if len(group.regions) else ": no region covers it"
        names.text(20, place + 0.5, printable(f"{group.name}{covered}", 50), va="center", fontsize=FONT)
    sheet.y += 4
    which = "each layer" if len(looks) == num_layers else f"{len(looks)} of {num_layers} layers"
    title = f"The best head of {which} (layer-head)" if groups else "No word attends much to one region"
    sheet.text(title, 12, "text", fontweight="bold")
    darkest = max([_LEAST_DARK, *(float(each.weights.max()) for each in looks if each.weights.size)])
    if groups:
        _draw_matrices(sheet, caption.sentence.words, len(groups), looks, darkest)
    sheet.y += 6
    sheet.text(f"Share of a word's attention; the darkest is {100 * darkest:.0f} % of it.")
    if len(looks) != num_layers:
        sheet.text("These layers find phrases best.")
    return sheet


def _draw_matrices(
    sheet: Sheet, words: Sequence[str], num_groups: int, looks: Sequence[LayerLooks], darkest: float
) -> None:
    """Matrices of the layers, as many in a row as there is room for."""
    width = CELL * num_groups + 10
    in_a_row = max(int((INNER - _WORD_WIDTH) / width), 1)
    for start in range(0, len(looks), in_a_row):
        top = sheet.y + 38
        for column, each in enumerate(looks[start : start + in_a_row]):
            sheet.y, left = top, MARGIN + _WORD_WIDTH + column * width
            sheet.label(left, top - 22, f"{each.layer}-{each.head}")
            axes = sheet.axes(left, CELL * num_groups, CELL * len(words))
            sheet.heat(axes, each.weights, darkest)
            if not column:
                axes.set_yticks(np.arange(len(words)) + 0.5, labels=[printable(word, 11) for word in words])
            for place in range(num_groups):
                tag(axes, place + 0.5, -0.55, place + 1, colour_of(place), ha="center", va="center")
