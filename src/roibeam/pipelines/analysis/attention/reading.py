"""The data set, the parses and the store, read and joined: which captions are asked, and where their records are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.attention.attention_settings import RULES, AttentionRequest
from roibeam.pipelines.analysis.attention.questions import (
    AskedCaption,
    LeftOut,
    Questioner,
    asked_captions,
    parses_by_caption,
)
from roibeam.pipelines.analysis.attention.spacy_parses import SPACY, spacy_parses
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.data.datasets.conll import read_conll
from roibeam.pipelines.data.datasets.entities import EntityCounts, EntityImage, read_entities, split_names
from roibeam.pipelines.data.image_finder import ImageFinder
from roibeam.pipelines.data.shown_regions import strongest_regions


@dataclass(frozen=True, eq=False)
class Asked:
    """Attributes:
    captions: with their questions; at least one.
    record_of: the record of an id; the last ones are kept, since captions of an image come one after the other.
    notes: what was read and what was left out.
    """

    captions: tuple[AskedCaption, ...]
    record_of: Callable[[str], RegionRecord]
    notes: tuple[str, ...]


def read_asked(store: FeatureStore, samples: EvaluationSamples, request: AttentionRequest) -> Asked:
    """
    Args:
        samples: of the model.
    Raises:
        ValueError: when too few images have a record, or nothing can be asked.
    """
    counts, left_out = EntityCounts(), LeftOut()
    names = None if request.split is None else split_names(request.entities, request.split)
    images = list(read_entities(request.entities, counts, names=names, rule=RULES[request.rules][0]))
    parses = None
    if request.parses is not None:
        source = str(request.parses)
        every = [(image.name, number) for image in images for number in image.sentences]
        made = spacy_parses(_some(images, request)) if source == SPACY else read_conll(source)
        parses = parses_by_caption(made, every, source)
    finder = ImageFinder(store.ids())
    found = {image.name: finder.find(image.name) for image in images}
    _check_match(found, request)

    @lru_cache(maxsize=max(request.batch_size, 1))
    def record_of(record_id: str) -> RegionRecord:
        return _strongest(store.get(record_id, check=True), request.max_regions)

    def find(name: str) -> RegionRecord | None:
        record_id = found[name]
        return None if record_id is None else record_of(record_id)

    questioner = Questioner(samples.pieces_of_words, request.word, parses, left_out, samples.cut_words)
    captions = tuple(asked_captions(_some(images, request), questioner, find))
    notes = (*counts.lines(), *left_out.lines())
    if not captions:
        raise ValueError(f"nothing can be asked of --entities {request.entities!r}: {'; '.join(notes)}")
    return Asked(captions, record_of, notes)


def _strongest(record: RegionRecord, most: int) -> RegionRecord:
    """The record of its regions with the best scores, in the order in which they stand; 0 keeps all. Heads, baseline
    and ceiling then know no others."""
    if not most or record.num_regions <= most:
        return record
    kept = np.sort(strongest_regions(record, most))
    return RegionRecord(
        image_id=record.image_id,
        height=record.height,
        width=record.width,
        boxes=record.boxes[kept],
        features=record.features[kept],
        class_ids=record.class_ids[kept],
        class_scores=record.class_scores[kept],
        image_feature=record.image_feature,
    )


def _check_match(found: dict[str, str | None], request: AttentionRequest) -> None:
    missing = [name for name, record_id in found.items() if record_id is None]
    share = 1 - len(missing) / max(len(found), 1)
    if share < request.min_match or len(missing) == len(found):
        raise ValueError(
            f"--store {request.store} has {counted(len(found) - len(missing), 'image')} of the {len(found):,} of "
            f"--entities; {missing[0]!r} is missing. Name the split that it has with --split, or allow fewer with "
            f"--min-match"
        )


def _some(images: list[EntityImage], request: AttentionRequest) -> list[EntityImage]:
    if not request.max_images or request.max_images >= len(images):
        return images
    drawn = np.random.default_rng(request.seed).permutation(len(images))[: request.max_images]
    return [images[place] for place in sorted(drawn.tolist())]
