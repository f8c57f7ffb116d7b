"""A page of retrieval: captions, the five pictures that score best with each, the right one framed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.printable import escaped
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.pages.banner import banner_html
from roibeam.pipelines.common.pages.box_canvas import CANVAS_STYLE, box_canvas
from roibeam.pipelines.common.pages.frame import PAGE_END, folded, note, page_start, table
from roibeam.pipelines.data.shown_photos import Shown, stored_photos
from roibeam.pipelines.extract.report.region_meaning import warning_of_store
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.results.retrieval_results import (
    FoldPairs,
    PairScores,
    best_images,
    fold_ranks,
    retrieval_numbers,
)
from roibeam.pipelines.finetuning.rows import TaskGroup

TOP = 5
_QUERIES = 6  # of a section
_MOST_BYTES = 1_900_000  # of the queries of a page


@dataclass(frozen=True)
class _Query:
    """One caption.

    Attributes:
        rank: of its own image, from 1, ties against it.
        found: numbers of the images that are shown and their scores; the right one last where it is not among the best.
        right: number of its own image.
    """

    caption: str
    text: str
    rank: int
    found: Sequence[tuple[int, float]]
    right: int


def write_retrieval_page(
    path: Path,
    title: str,
    scores: PairScores,
    shown: Mapping[str, TaskGroup],
    texts: Sequence[str],
    measures: Mapping[str, Measure],
    store: FeatureStore,
    *,
    facts: Sequence[tuple[str, str]],
    remarks: Sequence[str],
) -> None:
    """Writes the page, whole or not at all; it stays below 2 MB.

    Args:
        shown: by the scores' ids of images a group whose first image is what the store calls it.
        texts: of the captions.
        measures: of the scores.
        facts: of the card, name and value.
        remarks: what a reader must not miss.
    """
    numbers = retrieval_numbers(scores)
    summary = (
        f"{counted(len(scores.captions), 'caption')} with {counted(len(scores.images), 'image')}"
        f"{'' if scores.folds == 1 else f' in {scores.folds} parts'}: "
        f"{', '.join(f'{name} {measure.percent:.1f} %' for name, measure in measures.items())}; "
        f"{', '.join(f'{name} {value:,.1f}' for name, value in numbers.items())}."
    )
    queries = _chosen(scores, texts)
    ids = {image: group.images[0] for image, group in shown.items()}
    names = [scores.images[number] for each in queries.values() for query in each for number, _ in query.found]
    photos = stored_photos([store], dict.fromkeys(ids[name] for name in names))
    page = [
        page_start(title, summary, style=CANVAS_STYLE + _STYLE),
        banner_html(warning_of_store(store.manifest)),
        *(note("Note:", remark) for remark in remarks),
        *_sections(queries, scores, ids, store, photos),
    ]
    lines = [[escaped(name), escaped(value, 1000)] for name, value in facts]
    page.append(f"<section><h2>The card</h2>\n{folded('How this was made', table(['what', 'value'], lines))}</section>")
    write_bytes_atomically(path, "".join([*page, PAGE_END]).encode("utf-8"))


def _chosen(scores: PairScores, texts: Sequence[str]) -> dict[str, list[_Query]]:
    """Captions at even steps through those that were found at once, those whose image came last; one of an image."""
    queries = []
    for fold, ranks in fold_ranks(scores):
        for place, rank in enumerate(ranks.text_to_image):
            queries.append((int(rank), fold, place))
    order = np.argsort([rank for rank, _, _ in queries], kind="stable")
    of_image = [_image(fold, place) for _, fold, place in queries]
    first = _one_each([int(number) for number in order if queries[number][0] == 1], of_image)
    found = first[:: max(1, len(first) // _QUERIES)][:_QUERIES]
    missed = _one_each([int(number) for number in order[::-1] if queries[number][0] > TOP], of_image)[:_QUERIES]
    made: dict[str, list[_Query]] = {}
    for name, numbers in (("Found at once", found), ("Missed by the most", missed)):
        made[name] = []
        for number in numbers:
            rank, fold, place = queries[number]
            row, right = int(fold.captions[place]), _image(fold, place)
            best = best_images(scores, fold, place, TOP)
            if right not in [image for image, _ in best]:
                column = right if scores.folds == 1 else int(fold.image_of_caption[place])
                best.append((right, float(scores.scores[row, column])))
            made[name].append(_Query(scores.captions[row], texts[row], rank, best, right))
    return made


def _image(fold: FoldPairs, place: int) -> int:
    """Number of the image of a fold's caption."""
    return int(fold.images[fold.image_of_caption[place]])


def _one_each(numbers: Sequence[int], image_of: Sequence[int]) -> list[int]:
    """The first of each image."""
    return list({image_of[number]: number for number in reversed(numbers)}.values())[::-1]


def _sections(
    queries: Mapping[str, Sequence[_Query]],
    scores: PairScores,
    ids: Mapping[str, str],
    store: FeatureStore,
    photos: Mapping[str, Shown],
) -> Iterator[str]:
    room = _MOST_BYTES
    yield '<p class="quiet">The five pictures that score best, the best first; the right one has a frame.</p>\n'
    for name, of_section in queries.items():
        yield f"<section><h2>{escaped(name)}</h2>\n"
        if not of_section:
            yield '<p class="quiet">none</p>\n'
        for place, query in enumerate(of_section):
            markup = "".join(_query(query, scores, ids, store, photos))
            room -= len(markup.encode("utf-8"))
            if room < 0:
                left = counted(len(of_section) - place, "caption")
                yield f'<p class="quiet">{left} left out: the page would be too large.</p>\n'
                break
            yield markup
        yield "</section>\n"


def _query(
    query: _Query, scores: PairScores, ids: Mapping[str, str], store: FeatureStore, photos: Mapping[str, Shown]
) -> Iterator[str]:
    yield (
        f'<article class="query"><p class="asked"><bdi>{escaped(query.text, 600)}</bdi></p>\n'
        f'<p class="quiet id">{escaped(query.caption, 80)}: its picture has rank {query.rank:,}</p>\n'
        f'<div class="found">'
    )
    for place, (number, score) in enumerate(query.found):
        image = scores.images[number]
        meta = store.meta(ids[image])
        jpeg, why = photos.get(ids[image], (None, "the store has no such image"))
        is_right = number == query.right
        rank = place + 1 if place < TOP else query.rank
        words = f"rank {rank:,}{', the right one' if is_right else ''}, score {score:.3f}"
        canvas = box_canvas([], (meta.height, meta.width), jpeg, description=f"{image}: {words}")
        unseen = f'<p class="quiet">Photo not shown: <bdi>{escaped(why, 200)}</bdi></p>' if jpeg is None else ""
        yield (
            f'<div class="{"right" if is_right else "other"}">{canvas}<p class="quiet id">{escaped(image, 80)}</p>'
            f'<p class="quiet">{words}</p>{unseen}</div>'
        )
    yield "</div></article>\n"


_STYLE = """
.query { padding: 14px 0; border-top: 1px solid var(--line); break-inside: avoid; }
.query .asked { font-size: 15px; font-weight: 600; overflow-wrap: anywhere; }
.query .found { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.query .found > div { padding: 4px; border: 3px solid transparent; border-radius: 4px; min-width: 0; }
.query .found > .right { border-color: #2f9e5f; }
.query .found p { overflow-wrap: anywhere; margin: 2px 0; }
"""
