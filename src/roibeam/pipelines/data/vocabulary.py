"""Names of the detector's classes and attributes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.weights.sources import fetch_weights
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
    Raises:
        ValueError: as `read_vocabulary`, or if a list is not as long as the detector's.
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
            numbers); "vg": the published Visual Genome lists, fetched once and cached.
    Raises:
        ValueError: if a list is missing, cannot be fetched, or has a line without a name.
    """
    attributes = None
    if spec != PUBLISHED_LISTS:
        refuse_others(spec, ("model",))
    if spec == PUBLISHED_LISTS:
        classes = _read(_fetch_vg(vg_url, CLASSES_FILE))
        attributes = _read(_fetch_vg(vg_url, ATTRIBUTES_FILE))
    elif Path(spec).is_dir():
        classes, attributes = _read(Path(spec) / CLASSES_FILE), _read(Path(spec) / ATTRIBUTES_FILE)
    else:
        classes = _read(Path(spec))
    return Vocabulary(classes, attributes)


def check_length(names: Sequence[str], wanted: int, what: str, spec: str, *, hint: str = "") -> None:
    """Raises ValueError, which ends with `hint`, when a list has another length than a detector's."""
    if len(names) != wanted:
        raise ValueError(
            f"vocabulary {spec!r}: {len(names)} {what}, but the detector has {wanted}; "
            f"give the list it was trained with{hint}"
        )


def _read(path: Path) -> tuple[str, ...]:
    try:
        return read_names(str(path)).names
    except OSError as error:
        raise ValueError(f"vocabulary {str(path)!r}: {error.strerror}") from None


def _fetch_vg(url: str, name: str) -> Path:
    try:
        return fetch_weights(f"{url}/{name}")  # the same cache and checks as for weights
    except (ValueError, OSError) as error:
        raise ValueError(f"cannot fetch {name} ({error}); give the folder that holds it: --vocab DIR") from None
