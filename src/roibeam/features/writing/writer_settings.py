"""What a user says once of all records of a store: the name of his features, and what class and attribute ids mean."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from roibeam.features.exchange.formats import FORMATS
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.record_change import COPY_DTYPES
from roibeam.name_list import check_list

MOST_CLASSES = 2**16  # ids are uint16


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """
    Attributes:
        feature_space: a name in lower-case letters, digits, `.`, `_` and `-`, such as "my-detector".
        classes, attributes: names in id order, background not among them; None when unknown.
        num_classes: foreground classes; given without names, or equal to their number.
        dtype: features are stored in it, one of `COPY_DTYPES`; None: as they are given.
        shard_bytes: a shard ends with the record that brings it to so many bytes of arrays.
        photos: absolute path of the folder that holds the photos; an image id is the path below it without its
            extension. None when unknown.

    Raises:
        ValueError: saying which of them is what it cannot be.
    """

    feature_space: str
    classes: tuple[str, ...] | None
    attributes: tuple[str, ...] | None
    num_classes: int | None
    dtype: str | None
    shard_bytes: int
    photos: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.feature_space, str) or not re.fullmatch(
            r"[a-z0-9][a-z0-9_.-]{0,99}", self.feature_space
        ):
            raise ValueError(
                f"feature_space {self.feature_space!r}: give a name of lower-case letters, digits, '.', '_' and '-', "
                f"at most 100, such as 'my-detector'"
            )
        if self.feature_space in FORMATS:
            raise ValueError(
                f"feature_space {self.feature_space!r} is the name of features imported from such files; choose a name "
                f"of your own, such as 'my-detector'"
            )
        if self.dtype is not None and self.dtype not in COPY_DTYPES:
            raise ValueError(f"dtype {self.dtype!r}: choose {' or '.join(COPY_DTYPES)}, or None: as they are given")
        if not isinstance(self.shard_bytes, int) or self.shard_bytes < 1:
            raise ValueError(f"shard_bytes {self.shard_bytes!r} must be a positive number of bytes")
        self._check_classes()

    def _check_classes(self) -> None:
        if self.classes is not None and self.classes[0].strip("_").lower() == "background":
            raise ValueError("classes: the first is background; name foreground classes alone, and count ids from them")
        count = self.num_classes
        if count is not None and not (isinstance(count, int) and 1 <= count < MOST_CLASSES):
            raise ValueError(f"num_classes {count!r} must be an integer from 1 to {MOST_CLASSES - 1}")
        if count is not None and self.classes is not None and count != len(self.classes):
            raise ValueError(f"num_classes is {count}, but classes has {len(self.classes):,} names; leave one out")

    @property
    def known_classes(self) -> int | None:
        """Foreground classes, where the user told."""
        return self.num_classes if self.classes is None else len(self.classes)

    @property
    def source(self) -> dict[str, dict[str, str]]:
        """What the store's config says of the photos, as an extraction of their folder would; nothing when unknown."""
        if self.photos is None:
            return {}
        return {
            "source": {
                "kind": "folder", "location": self.photos, "image_root": self.photos, "id_rule": "no-extension"
            }
        }  # fmt: skip

    @property
    def plan(self) -> str:
        """Equal for writers that may write one store: JSON, so that a difference can be named."""
        return json.dumps(
            {
                "feature_space": self.feature_space,
                "classes": _digest(self.classes),
                "num_classes": self.known_classes,
                "attributes": _digest(self.attributes),
            },
            sort_keys=True,
        )

    def difference(self, plan: str) -> str:
        """What another plan says otherwise, such as "feature_space 'a', now 'b'"; "" where nothing, or it is none."""
        try:
            before, now = json.loads(plan), json.loads(self.plan)
            names = [name for name in now if before[name] != now[name]]
        except (ValueError, TypeError, KeyError):
            return ""
        return ", ".join(
            f"{name} {before[name]!r}, now {now[name]!r}" if before[name] and now[name] else
            f"{name}, now none" if before[name] else f"no {name}, now some"
            for name in names
        )  # fmt: skip

    def check(self, record: RegionRecord, *, has_classes: bool | None) -> None:
        """ValueError naming the record when its ids are not those of the classes and attributes.

        Args:
            has_classes: whether its class ids were given; None where nobody can tell.
        """
        where = f"record {record.image_id!r}"
        known = self.known_classes
        if known is not None:
            if has_classes is False and record.num_regions:
                raise ValueError(
                    f"{where}: class_ids and class_scores missing; this writer was told of {known} classes"
                )
            _check_ids(where, "class_ids", record.class_ids, known)
        if self.attributes is not None:
            if record.attribute_ids is None:
                raise ValueError(
                    f"{where}: attribute_ids and attribute_scores missing; this writer was told of attributes"
                )
            _check_ids(where, "attribute_ids", record.attribute_ids, len(self.attributes))
        distribution = record.class_distribution
        if known is not None and distribution is not None:
            if isinstance(distribution, TopKDistribution):
                columns = distribution.num_classes
            else:
                columns = distribution.shape[1] - 1
            if columns != known:
                raise ValueError(
                    f"{where}: class_distribution is of {columns} classes and background, this writer was told of "
                    f"{known} classes"
                )


def checked_names(names: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    """Names of classes or attributes.

    Raises:
        ValueError: for one text in place of several, no name, or what is no text.
    """
    if names is None:
        return None
    check_list(names, what)
    found = tuple(names)
    for number, name in enumerate(found):
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what}: name {number} is {name!r}, not a text")
    if not 1 <= len(found) < MOST_CLASSES:
        raise ValueError(
            f"{what} has {len(found):,} names; give 1 to {MOST_CLASSES - 1:,}, or None when they are unknown"
        )
    return found


def _check_ids(where: str, name: str, ids: np.ndarray, count: int) -> None:
    if len(ids) and int(ids.max()) >= count:
        raise ValueError(f"{where}: {name} has {int(ids.max())}, this writer was told of {count}, 0 to {count - 1}")


def _digest(names: tuple[str, ...] | None) -> str | None:
    if names is None:
        return None
    return f"{len(names)} names, SHA-256 {hashlib.sha256(json.dumps(names).encode('ascii')).hexdigest()[:16]}"
