"""Names of the detector's classes and attributes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.weights.sources import fetch_weights
from roibeam.pipelines.sources.datasets.visual_genome import read_names

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
    """The names to store beside the ids.

    Args:
        spec: a folder with objects_vocab.txt and attributes_vocab.txt; a file with the class names (attributes stay
            numbers); "vg": the published Visual Genome lists, fetched once and cached; None: bare ids.
        num_classes, num_attributes: of the detector, background and "no attribute" not counted.
    Raises:
        ValueError: if a list is missing, cannot be fetched, has a line without a name, or is not as long as the
            detector's.
    """
    if spec is None:
        return Vocabulary()
    attributes = None
    if spec == PUBLISHED_LISTS:
        classes = _read(_fetch_vg(vg_url, CLASSES_FILE))
        attributes = _read(_fetch_vg(vg_url, ATTRIBUTES_FILE))
    elif Path(spec).is_dir():
        classes, attributes = _read(Path(spec) / CLASSES_FILE), _read(Path(spec) / ATTRIBUTES_FILE)
    else:
        classes = _read(Path(spec))
    _check_length(classes, num_classes, "classes", spec)
    if attributes is not None and num_attributes is not None:
        _check_length(attributes, num_attributes, "attributes", spec)
    return Vocabulary(classes=classes, attributes=attributes if num_attributes is not None else None)


def _read(path: Path) -> tuple[str, ...]:
    try:
        return read_names(str(path)).names
    except OSError as error:
        raise ValueError(f"vocabulary {str(path)!r}: {error.strerror}") from None


def _check_length(names: tuple[str, ...], wanted: int, what: str, spec: str) -> None:
    if len(names) != wanted:
        raise ValueError(
            f"vocabulary {spec!r}: {len(names)} {what}, but the detector has {wanted}; "
            f"give the list it was trained with"
        )


def _fetch_vg(url: str, name: str) -> Path:
    try:
        return fetch_weights(f"{url}/{name}")  # the same cache and checks as for weights
    except (ValueError, OSError) as error:
        raise ValueError(f"cannot fetch {name} ({error}); give the folder that holds it: --vocab DIR") from None
