"""Which image ids of two sources mean the same image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from roibeam.features.comparison.record_source import RecordSource

ID_RULES = ("exact", "number")


def paired_ids(left: RecordSource, right: RecordSource, rule: str) -> Iterator[tuple[str | None, str | None]]:
    """Every image once: (left id, right id), None on the side that lacks it.

    Args:
        rule: "exact": equal ids; "number": ids that end in the same number, so that "COCO_train2014_000000132417" meets
            the "132417" of the original files. An id without a number at its end meets its equal.
    Raises:
        ValueError: on an unknown rule, or two ids of one side that end in one number.
    """
    if rule == "exact":
        for image_id in left.ids():
            yield image_id, image_id if image_id in right else None
        yield from ((None, image_id) for image_id in right.ids() if image_id not in left)
    elif rule == "number":
        numbered = _by_number(right)
        for image_id in left.ids():
            yield image_id, numbered.get(_number(image_id))
        known = _by_number(left)
        yield from ((None, image_id) for number, image_id in numbered.items() if number not in known)
    else:
        raise ValueError(f"id rule {rule!r}: choose one of {', '.join(ID_RULES)}")


def _by_number(source: RecordSource) -> dict[int | str, str]:
    numbered: dict[int | str, str] = {}
    for image_id in source.ids():
        other = numbered.setdefault(_number(image_id), image_id)
        if other != image_id:
            raise ValueError(f"{source.name}: {other!r} and {image_id!r} end with one number; pair ids exactly instead")
    return numbered


def _number(image_id: str) -> int | str:
    """The number at the end of an id; the id itself where there is none."""
    found = re.search(r"[0-9]{1,18}$", image_id)
    return int(found.group()) if found else image_id
