"""Names and numbers of region classes: of a detector, of a run's stores, of a model that counts background."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.weights.sources import fetch_weights
from roibeam.features.exchange.reading import BACKGROUNDS
from roibeam.features.record.fingerprint import has_classes, has_grid, num_classes_of
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.datasets.class_names import read_attribute_names
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.datasets.visual_genome import read_names

CLASSES_FILE = "objects_vocab.txt"
ATTRIBUTES_FILE = "attributes_vocab.txt"
# The list that the published Visual Genome detectors were trained with: peteanderson80/bottom-up-attention.
VG_URL = "https://raw.githubusercontent.com/peteanderson80/bottom-up-attention/master/data/genome/1600-400-20"

PUBLISHED_LISTS = "vg"  # in place of a file


@dataclass(frozen=True)
class Vocabulary:
    """Names in id order; None where regions carry bare ids."""

    classes: tuple[str, ...] | None = None
    attributes: tuple[str, ...] | None = None

    @property
    def digest(self) -> str | None:
        """SHA-256 of the names; None when regions carry bare ids."""
        if self.classes is None and self.attributes is None:
            return None
        content = json.dumps([list(self.classes or ()), list(self.attributes or ())], ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()


def load_vocabulary(
    spec: str | None, *, num_classes: int, num_attributes: int | None, vg_url: str = VG_URL
) -> Vocabulary:
    """The names to store beside the ids of a detector.

    Args:
        spec: see `read_vocabulary`; None: bare ids.
        num_classes, num_attributes: of the detector, background and "no attribute" not counted.
    """
    if spec is None:
        return Vocabulary()
    names = read_vocabulary(spec, vg_url=vg_url)
    check_length(names.classes or (), num_classes, "classes", spec)
    if num_attributes is None:
        return Vocabulary(names.classes)
    if names.attributes is not None:
        check_length(names.attributes, num_attributes, "attributes", spec)
    return names


def read_vocabulary(spec: str, *, vg_url: str = VG_URL) -> Vocabulary:
    """The names, whatever detector they are of.

    Args:
        spec: a folder with objects_vocab.txt and attributes_vocab.txt; a file with the class names (attributes stay
            numbers, unless it is a label map with both); "vg": the published Visual Genome lists, fetched once and
            cached.
    """
    if spec == PUBLISHED_LISTS:
        return Vocabulary(_read(_fetch_vg(vg_url, CLASSES_FILE)), _read(_fetch_vg(vg_url, ATTRIBUTES_FILE)))
    refuse_others(spec, ("model",))
    if Path(spec).is_dir():
        return Vocabulary(_read(Path(spec) / CLASSES_FILE), _read(Path(spec) / ATTRIBUTES_FILE))
    return Vocabulary(_read(Path(spec)), _read_attributes(Path(spec)))


def check_length(names: Sequence[str], expected: int, what: str, spec: str, *, hint: str = "") -> None:
    """Raises ValueError, which ends with `hint`, when a list has another length than a detector's."""
    if len(names) != expected:
        raise ValueError(
            f"vocabulary {spec!r}: {len(names)} {what}, but the detector has {expected}; "
            f"give the list it was trained with{hint}"
        )


def _read(path: Path) -> tuple[str, ...]:
    try:
        return read_names(str(path)).names
    except OSError as error:
        raise ValueError(f"vocabulary {str(path)!r}: {error.strerror}") from None


def _read_attributes(path: Path) -> tuple[str, ...] | None:
    names = read_attribute_names(str(path))
    return None if names is None else tuple(name.partition(",")[0].strip() for name in names)


def _fetch_vg(url: str, name: str) -> Path:
    try:
        return fetch_weights(f"{url}/{name}")  # the same cache and checks as for weights
    except (ValueError, OSError) as error:
        raise ValueError(f"cannot fetch {name} ({error}); give the folder that holds it: --vocab DIR") from None


def check_background(place: str | None) -> None:
    """Raises ValueError for what is no place of background among classes; None is one that is not given."""
    if place not in (None, *BACKGROUNDS):
        raise ValueError(f"--background {place!r}: choose one of {', '.join(BACKGROUNDS)}")


class Names:
    """Names of region classes, by the number that a model or a detector gives.

    Args:
        classes: of the detector, foreground only; empty for none.
        background: position in a model's classes: "first", as in the published stores of bottom-up attention, "last",
            as in roibeam's, or "none"; None: last, where it has one class more than there are names.
    """

    def __init__(self, classes: Sequence[str], *, background: str | None = None) -> None:
        check_background(background)
        self.classes, self.background = tuple(classes), background

    def of_detector(self, class_id: int) -> str:
        return self.classes[class_id] if class_id < len(self.classes) else f"class {class_id}"

    def of_model(self, label: int, num_labels: int) -> str:
        """
        Args:
            num_labels: K of the model; one more than there are classes where background is one.
        """
        if self.background == "first":
            return "background" if label == 0 else self.of_detector(label - 1)
        counts_background = self.background != "none" and num_labels == len(self.classes) + 1
        if label == num_labels - 1 and (counts_background or self.background == "last"):
            return "background"
        return self.of_detector(label)


def known_classes(store: FeatureStore, record: RegionRecord) -> int | None:
    """Number of foreground classes of the store's detector, by its names, a record or its manifest; None if unknown."""
    names = store.vocabulary["classes"]
    if names:
        return len(names)
    count = store.manifest.config.get("num_classes")
    if type(count) is int:  # without names, as given to `StoreWriter`
        return count
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    return num_classes_of(store.fingerprint) if distribution is None else distribution.shape[1] - 1


@dataclass(frozen=True)
class StoreClasses:
    """
    Attributes:
        number: foreground classes, of one store and so of all; None if unknown, or if a store has no class ids.
        has_ids: whether the class ids of all stores mean something.
        missing: what is not known and why, for people; "" where the number is.
        remedy: what would change that.
    """

    number: int | None
    has_ids: bool = True
    missing: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, stores: Iterable[tuple[FeatureStore, RegionRecord]], given: int | None) -> StoreClasses:
        """
        Args:
            stores: each with one of its records.
            given: number from the user; None for none.
        Raises:
            ValueError: when two of them differ, or the user counts classes of a store that has none.
        """
        number, origin = given, f"--num-classes says {given}"
        first: FeatureStore | None = None
        for store, record in stores:
            if not has_classes(store.fingerprint):
                source = store.fingerprint.details.get("format")
                why = "its detector is a ResNet alone" if source is None else f"its {source} file had none"
                why = "its boxes were given" if "backbone" in store.fingerprint.details else why
                why = "its regions are the cells of a grid" if has_grid(store.fingerprint) else why
                missing = f"store {store.path} has no class ids ({why})"
                if given is not None:
                    raise ValueError(f"--num-classes {given}: {missing}; leave the option out")
                return cls(None, False, missing, "a file with class ids or roibeam extract gives them")
            first = first or store
            if first.vocabulary["classes"] != store.vocabulary["classes"]:
                raise ValueError(
                    f"{first.path} and {store.path} have different class names, so class 7 of one may be another thing "
                    f"in the other; train on stores of one detector"
                )
            own = known_classes(store, record)
            if None not in (number, own) and number != own:
                remedy = "leave the option out" if given is not None else "train on stores of one detector"
                raise ValueError(f"store {store.path} is of a detector of {own} classes, {origin}; {remedy}")
            if number is None and own is not None:
                number, origin = own, f"{store.path} of one of {own}"
        if number is not None:
            return cls(number)
        missing = f"store {store.path} does not record the number of classes of its detector"
        return cls(None, True, missing, "give it with --num-classes (1600 for Visual Genome, background not counted)")
