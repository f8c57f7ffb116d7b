"""Which caption belongs to which stored record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.datasets.image_ids import NameIndex


@dataclass(frozen=True)
class JoinReport:
    """Attributes:
    matched: caption rows with a record; the sum of `by_exact_id` and `by_name`.
    captions_without_record: caption rows that are left out.
    records_without_caption: records that are not used.
    by_exact_id, by_name: rows matched by the whole id, or by a path that ends alike.
    """

    matched: int
    captions_without_record: int
    records_without_caption: int
    by_exact_id: int
    by_name: int


def join_captions(
    rows: Iterable[tuple[str, str]], record_ids: Iterable[str]
) -> tuple[list[tuple[str, str]], JoinReport]:
    """Caption rows (image id, caption) with the ids of their records, in the order of `rows`.

    A row matches the record of the same id, else the one record whose path without image extension ends with the row's,
    or the other way round ("images/a.jpg" and "a", not "train/a"); where several records do, none.

    Raises:
        ValueError: when nothing matches, with an id of each side.
    """
    rows, known = list(rows), set(record_ids)
    names = NameIndex(known)
    joined, exact = [], 0
    for image_id, caption in rows:
        if image_id in known:
            joined.append((image_id, caption))
            exact += 1
        elif len(found := names.candidates(image_id)) == 1:
            joined.append((found[0], caption))
    if not joined:
        raise ValueError(
            f"none of {len(rows)} captions names an image of the store ({len(known)} records): a caption names "
            f"{rows[0][0] if rows else None!r}, the store holds {min(known, default=None)!r}; extract the images of "
            f"these captions, or write the store's ids into the caption file"
        )
    used = {record_id for record_id, _ in joined}
    report = JoinReport(len(joined), len(rows) - len(joined), len(known - used), exact, len(joined) - exact)
    return joined, report
