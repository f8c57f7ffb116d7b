"""HTML page of a store's report, and warnings for a store or photo whose regions mean nothing.

The page is plain data in, text out: it reads nothing and fetches nothing. Two detectors name things that are not there:
one with random weights, and the toy detector on photos. Whether photos are those of a toy world is known by the folder
that they lie in; `extract` records it, since folders are moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from roibeam.extraction.photos.image_ref import Failure
from roibeam.extraction.weights.detector_choice import SHIPPED, WEIGHTS_NAME, read_detector_folder
from roibeam.features.record.region_drawing import colours_by_class
from roibeam.features.shard.manifest import StoreManifest
from roibeam.messages import plural
from roibeam.pipelines.common.charts import Bar, DrawnRegion, bars_of_integers, histogram, photo_with_regions
from roibeam.pipelines.common.page_layout import Banner, rendered
from roibeam.pipelines.data.datasets.photo_folders import DRAWN_WORLD, world_of

RANDOM_WEIGHTS = Banner(
    "Random weights.",
    "The detector was not trained: boxes, names and scores mean nothing. They show that the pipeline runs, no more.",
)
TOY_ON_PHOTOS = Banner(
    "The toy detector knows the drawn world only.",
    "These photos do not lie in a folder of roibeam toyworld. Unless they are copies of its pictures, boxes, names "
    "and scores mean nothing.",
)


def warning_of_store(manifest: StoreManifest) -> Banner | None:
    """Warning that the regions of a store, or of a part of a merged one, mean nothing; None where they may."""
    warnings = (warning_of_config(config, manifest.classes) for config in _parts(manifest.config))
    return next((each for each in warnings if each is not None), None)


def warning_of_config(config: Mapping[str, Any], classes: Sequence[str] | None) -> Banner | None:
    """The same of one run's configuration, and the store's names of classes."""
    detector, source = config_part(config, "detector"), config_part(config, "source")
    if not detector.get("weights"):  # written or imported: the detector is unknown
        return None
    # A recorded yes holds when the photos have moved; a "no" may be from before more folders were known.
    drawn = config.get(DRAWN_WORLD) is True or has_toy_photos(source)
    return warning_of(str(detector.get("weights", "")), classes, drawn=drawn)


def warning_of(weights: str, classes: Sequence[str] | None, *, drawn: bool) -> Banner | None:
    """The same of a detector.

    Args:
        drawn: whether the photos are pictures of a toy world.
    """
    if weights.startswith("random:"):
        return RANDOM_WEIGHTS
    return TOY_ON_PHOTOS if not drawn and is_toy_world_detector(weights, classes) else None


def is_toy_world_detector(weights: str, classes: Sequence[str] | None) -> bool:
    """Whether a detector was trained on the toy world: the shipped one, or another with exactly its classes."""
    path = PurePath(weights)
    return (path.parent.name, path.name) == (SHIPPED["toy"].name, WEIGHTS_NAME) or (
        classes is not None and tuple(classes) == _toy_classes()
    )


def has_toy_photos(source: Mapping[str, Any]) -> bool:
    """Whether the photos of a source, as plans and manifests record it, lie in a toy world's folder."""
    place = source.get("image_root") or source.get("location")
    return isinstance(place, str) and world_of(place) is not None


@lru_cache(maxsize=1)
def _toy_classes() -> tuple[str, ...]:
    return read_detector_folder("toy").class_names


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration of a run, or those that a copied store was put together from."""
    sources = config_part(config, "copy").get("sources")
    if not isinstance(sources, list) or not sources:
        yield config
        return
    common = {key: value for key, value in config.items() if key != "copy"}
    for source in sources:
        own = source.get("config") if isinstance(source, dict) else None
        yield from _parts({**common, **(own if isinstance(own, dict) else {})})


def config_part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a recorded configuration; empty where it is none."""
    part = config.get(name)
    return part if isinstance(part, dict) else {}


@dataclass(frozen=True)
class ReportFacts:
    """Facts of the page about the run; plain data.

    Attributes:
        num_images: images that were to be extracted; each should have become a record or a failure.
        num_records, num_regions, num_failures: of the whole store.
        seconds: wall time of the last run that extracted something; None when that is not known.
        timed_images: images that it extracted in that time.
        details: ordered facts, such as ("detector", "vg-r101-c4"), ("weights", ...), ("content digest", "3f2a...").
        banner: first note for the reader, such as that boxes and names mean nothing.
    """

    store_name: str
    num_images: int
    num_records: int
    num_regions: int
    num_failures: int
    seconds: float | None
    timed_images: int
    details: tuple[tuple[str, str], ...]
    banner: Banner | None


@dataclass(frozen=True)
class RegionFigures:
    """Counts over the records.

    Attributes:
        num_records: records that were counted; fewer than the store's when it was sampled.
        regions_per_image: number of regions -> number of images.
        score_counts: regions per class score, in equal bars over 0..1.
        classes, attributes: the most frequent ones, (name, regions), by descending count.
        num_classes, num_attributes: how many different ones were seen.
    """

    num_records: int
    regions_per_image: Mapping[int, int]
    score_counts: tuple[int, ...]
    classes: tuple[tuple[str, int], ...]
    attributes: tuple[tuple[str, int], ...]
    num_classes: int
    num_attributes: int


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one reason: how many, and the first few."""

    reason: str
    count: int
    examples: tuple[Failure, ...]


@dataclass(frozen=True)
class Photo:
    """One photo of the grid.

    Attributes:
        image_hw: (height, width) of the record, pixels.
        num_regions: of the record; `regions` holds the ones to draw, best first.
        thumbnail_jpeg: the photo made small; None when there is none.
    """

    image_id: str
    image_hw: tuple[int, int]
    num_regions: int
    regions: tuple[DrawnRegion, ...]
    thumbnail_jpeg: bytes | None
    missing: str = ""


def page_html(
    facts: ReportFacts,
    figures: RegionFigures,
    failures: Sequence[FailureGroup],
    photos: Sequence[Photo],
    *,
    regions_per_photo: int,
    attribute_score: float,
) -> str:
    """Returns the page. `regions_per_photo` and `attribute_score` are limits that it states."""
    colours = colours_by_class([region.class_id for region in photo.regions] for photo in photos)

    def drawn(photo: Photo) -> Markup:
        assert photo.thumbnail_jpeg is not None
        label = f"{photo.image_id}, {plural(len(photo.regions), 'region')} drawn"
        return photo_with_regions(
            photo.thumbnail_jpeg, photo.regions, image_hw=photo.image_hw, colours=colours, label=label
        )

    return rendered(
        "store.html", title=facts.store_name, facts=facts, figures=figures, failures=failures, photos=photos,
        counts=_counts(facts, figures), regions_per_image=_regions_per_image(figures),
        class_scores=_class_scores(figures), drawn=drawn, regions_per_photo=regions_per_photo,
        attribute_score=attribute_score,
    )  # fmt: skip


def _counts(facts: ReportFacts, figures: RegionFigures) -> list[tuple[str, str]]:
    cells = [
        ("images", f"{facts.num_images:,}"),
        ("records", f"{facts.num_records:,}"),
        ("regions", f"{facts.num_regions:,}"),
        ("failures", f"{facts.num_failures:,}"),
    ]
    if facts.num_images and facts.num_failures:
        cells.append(("failed", _percent(facts.num_failures / facts.num_images)))
    if facts.num_records:
        cells.append(("regions per image", f"{facts.num_regions / facts.num_records:.1f}"))
    if figures.regions_per_image and figures.num_records >= facts.num_records:
        fewest, most = min(figures.regions_per_image), max(figures.regions_per_image)
        cells.append(("fewest to most", f"{fewest:,} each" if fewest == most else f"{fewest:,} to {most:,}"))
    if facts.seconds and facts.timed_images:
        some = facts.timed_images != facts.num_images
        cells.append((f"time of {facts.timed_images:,}" if some else "time", _duration(facts.seconds)))
        cells.append(("images/s", _rate(facts.timed_images / facts.seconds)))
    return cells


def _regions_per_image(figures: RegionFigures) -> Markup | None:
    bars = bars_of_integers(figures.regions_per_image)
    if not bars:
        return None
    return histogram(
        bars, noun="image", ticks=_integer_ticks(bars), label="Histogram of the regions per image",
        title="regions in an image",
    )  # fmt: skip


def _class_scores(figures: RegionFigures) -> Markup | None:
    if not sum(figures.score_counts):
        return None
    steps = len(figures.score_counts)
    scores = [
        Bar(i / steps, (i + 1) / steps, count, f"{i / steps:.2f} to {(i + 1) / steps:.2f}")
        for i, count in enumerate(figures.score_counts)
    ]
    ticks = [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")]
    return histogram(
        scores, noun="region", ticks=ticks, label="Histogram of the class scores",
        title="score of the best class, 0 to 1",
    )  # fmt: skip


def _integer_ticks(bars: Sequence[Bar]) -> list[tuple[float, str]]:
    if bars[0].high - bars[0].low > 1:  # grouped: the edges between bars are round numbers
        every = -(-len(bars) // 5)
        ticks = [(i / len(bars), f"{bars[i].low:,.0f}") for i in range(0, len(bars), every)]
        return [*ticks, (1.0, f"{bars[-1].high:,.0f}")] if len(bars) % every == 0 else ticks
    every = next(step for step in (1, 2, 5, 10) if len(bars) <= 8 * step)
    return [((i + 0.5) / len(bars), f"{bar.low:,.0f}") for i, bar in enumerate(bars) if bar.low % every == 0]


def _percent(fraction: float) -> str:
    # A failure among millions is not 0 percent.
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 else "< 0.1 %"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
