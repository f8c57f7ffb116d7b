"""Judge of pairs: whether a text describes a picture, by text, regions and, if trained so, a match score.

`roibeam collect train-pairs` trains it on curated captions and labelled texts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.analysis_settings import check_new
from roibeam.pipelines.collection.judging.boosted_model import (
    BoostedModel,
    BoostingSettings,
    LabelledRows,
    check_extra,
    read_boosted_model,
    train_boosted,
)
from roibeam.pipelines.collection.judging.pair_features import NAMES, NameReader, pair_features
from roibeam.pipelines.collection.judging.picture_judge import RegionSource, StoredRegions, TrainedJudge, check_names
from roibeam.pipelines.collection.judging.training_rows import LABELLED, TrainedPair, negatives, read_labelled_texts
from roibeam.pipelines.collection.pairs import Pair
from roibeam.pipelines.common.console.progress import Progress, Unit
from roibeam.pipelines.data.captions.caption_files import CaptionFile

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.match_scores import MatchScores

KIND = "pairs"


class TrainedPairJudge:
    """Judge of whether a text describes an image (step 6); `roibeam collect train-pairs` makes one.

    Attributes:
        threshold: a pair with a lower score is dropped as "low score".
    Args:
        model: of `roibeam collect train-pairs`.
        match: scores of the pre-trained model that it was trained with; None where it was trained without.
    Raises:
        ValueError: if the detector or the pre-trained model is another one than in training.
    """

    def __init__(self, model: BoostedModel, regions: RegionSource, match: MatchScores | None = None) -> None:
        check_names(model, regions)
        wanted, given = model.needs.get("match"), None if match is None else match.fingerprint()
        if wanted != given:
            what = "without a match model, here is one" if wanted is None else "with another match model than here"
            raise ValueError(f"this model of pairs was trained {what}; name the one it was trained with, or none")
        self._model, self._regions, self._match = model, regions, match
        self._reader = NameReader(regions.names.classes or (), regions.names.attributes or ())
        self.threshold = model.threshold

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """Scores each pair 0..1; pairs of one picture and page, one after another, are each other's context."""
        runs = [list(run) for _, run in groupby(pairs, key=lambda pair: (pair.picture.path, pair.page_url))]
        paths = list(dict.fromkeys(run[0].picture.path for run in runs))
        records = dict(zip(paths, self._regions.records(paths), strict=True))
        rows = []
        for run in runs:
            record = records[run[0].picture.path]
            for number, pair in enumerate(run):
                others = [other.text.text for place, other in enumerate(run) if place != number]
                rows.append(features_of(pair.text.text, others, record, self._reader, self._match))
        return self._model.score(np.array(rows)).tolist() if rows else []


def open_pair_judge(path: Path, regions: RegionSource, match: MatchScores | None = None) -> TrainedPairJudge:
    model = read_boosted_model(path, kind=KIND, features=(NAMES,))
    try:
        return TrainedPairJudge(model, regions, match)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def features_of(
    text: str, others: Sequence[str], record: RegionRecord | None, reader: NameReader, match: MatchScores | None
) -> np.ndarray:
    """(42,) float64 features, see `pair_features`."""
    log_odds = None
    if match is not None and record is not None and record.num_regions:
        log_odds = match.log_odds(record, text)
    return pair_features(text, others, record, reader, log_odds)


_PAIRS = Unit("pair", "pairs")
CURATED = "curated"


@dataclass(frozen=True)
class TrainPairsRequest:
    """
    Attributes:
        captions: curated captions, with the stores of their images, one each.
        stores: see captions.
        labels: CSV with the columns image, text, label and, if known, page; None for none.
        labels_store: store of the images of `labels`.
        match: pre-trained model whose match score is a feature; None for none.
        max_captions: curated captions at most, the first of each image before any second.
        precision: wanted of the pairs that pass.
        seed: of negatives and training.
        caption_column: of `captions`, see `CaptionFile`.
    """

    out: Path
    captions: tuple[str, ...]
    stores: tuple[str, ...]
    labels: Path | None = None
    labels_store: str | None = None
    match: str | None = None
    max_captions: int = 5000
    precision: float = 0.95
    seed: int = 0
    caption_column: str = ""


@dataclass(eq=False)
class _Gathered:
    """Pairs, and the records of their images: with the features of regions, which a match model needs."""

    pairs: list[TrainedPair] = field(default_factory=list)
    records: dict[str, RegionRecord] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def top_class(self) -> dict[str, int]:
        filled = {name: record for name, record in self.records.items() if record.num_regions}
        return {name: int(record.class_ids[np.argmax(record.class_scores)]) for name, record in filled.items()}


def train_pairs(request: TrainPairsRequest) -> TrainedJudge:
    _check(request)
    gathered, names = _Gathered(), None
    for number, (captions, store_path) in enumerate(zip(request.captions, request.stores, strict=True)):
        with FeatureStore(store_path) as store:
            regions = StoredRegions(store, named=store_path)
            names = _same_names(names, regions, store_path)
            file = CaptionFile(captions, caption_column=request.caption_column)
            _add_captions(gathered, file, regions, f"{number}:", request.max_captions)
    if request.labels is not None and request.labels_store is not None:
        with FeatureStore(request.labels_store) as store:
            regions = StoredRegions(store, named=request.labels_store)
            names = _same_names(names, regions, request.labels_store)
            _add_labels(gathered, request.labels, regions)
    assert names is not None
    reader = NameReader(names.names.classes or (), names.names.attributes or ())
    right = [pair for pair in gathered.pairs if pair.label]
    if not right:
        raise ValueError(f"no right pair of an image that is in a store; left out: {dict(gathered.left_out)}")
    made = list(negatives(right, gathered.top_class, gathered.records, reader, np.random.default_rng(request.seed)))
    match = None if request.match is None else _match_scores(request.match)
    rows = _rows([*gathered.pairs, *made], gathered.records, reader, match, has_labels=request.labels is not None)
    needs = {"names": names.names.digest, "match": None if match is None else match.fingerprint()}
    settings = BoostingSettings(seed=request.seed)
    model = train_boosted(KIND, NAMES, rows, precision=request.precision, settings=settings, needs=needs)
    model.write(request.out)
    return TrainedJudge(model, dict(gathered.left_out))


def _check(request: TrainPairsRequest) -> None:
    check_new(request.out)
    check_extra()
    if len(request.captions) != len(request.stores):
        raise ValueError(
            f"{len(request.captions)} of --captions, {len(request.stores)} of --store: each caption file needs the "
            "store of its images, in the same order"
        )
    if (request.labels is None) != (request.labels_store is None):
        raise ValueError("--pairs and --pairs-store go together: labelled texts, and the store of their images")
    if not request.captions and request.labels is None:
        raise ValueError("nothing to learn from: name --captions with --store, --pairs with --pairs-store, or both")


def _match_scores(model: str) -> MatchScores:
    from roibeam.pipelines.collection.judging.match_scores import MatchScores  # torch comes with it

    return MatchScores(model)


def _same_names(known: StoredRegions | None, found: StoredRegions, path: str) -> StoredRegions:
    if known is not None and known.names.digest != found.names.digest:
        raise ValueError(f"{path}: its classes are others than in the store before; extract both with one detector")
    return found


def _add_captions(gathered: _Gathered, file: CaptionFile, regions: StoredRegions, prefix: str, most: int) -> None:
    texts: dict[str, list[str]] = defaultdict(list)
    for caption in file:
        found = None if caption.name is None else regions.find(caption.name)
        if found is None:
            gathered.left_out["caption of an image that is not in the store"] += 1
        else:
            texts[found].append(caption.text)
    ordered = [(rank, name) for name in texts for rank in range(len(texts[name]))]
    for rank, name in sorted(ordered)[:most]:
        image = prefix + name
        if image not in gathered.records:
            record = regions.records([name])[0]
            assert record is not None, name
            gathered.records[image] = record
        # A page has one caption, seldom two: not the five that people wrote for one image.
        others = (texts[name][(rank + 1) % len(texts[name])],) if rank % 2 and len(texts[name]) > 1 else ()
        gathered.pairs.append(TrainedPair(image, texts[name][rank], others, True, CURATED))


def _add_labels(gathered: _Gathered, path: Path, regions: StoredRegions) -> None:
    rows = read_labelled_texts(path)
    beside: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        beside[row.image, row.page].append(row.text)
    for row in rows:
        image = f"labelled:{row.image}"
        if image not in gathered.records:
            record = regions.records([row.image])[0]
            if record is None:
                gathered.left_out["labelled text of an image that is not in the store"] += 1
                continue
            gathered.records[image] = record
        others = list(beside[row.image, row.page]) if row.page else [row.text]
        others.remove(row.text)
        gathered.pairs.append(replace(row, image=image, others=tuple(others)))


def _rows(
    pairs: Sequence[TrainedPair], records: dict[str, RegionRecord], reader: NameReader, match: MatchScores | None,
    *, has_labels: bool,
) -> LabelledRows:  # fmt: skip
    features = []
    with Progress("looking at pairs", len(pairs), _PAIRS) as progress:
        for pair in progress.counting(pairs):
            features.append(features_of(pair.text, pair.others, records[pair.image], reader, match))
    kinds = [pair.kind for pair in pairs]
    # The number of made negatives is arbitrary; labelled rows come as in a collection.
    decides = np.array([kind == LABELLED for kind in kinds]) if has_labels else np.ones(len(pairs), bool)
    labels = np.array([pair.label for pair in pairs])
    return LabelledRows(np.array(features), labels, [pair.image for pair in pairs], kinds, decides, has_labels)
