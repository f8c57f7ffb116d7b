"""Whether a result file has one row for each question and no other: every task asks it of its rows' ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from roibeam.features.counted import counted
from roibeam.features.printable import printable

STRICT, OFFICIAL = "strict", "official"


class RowsError(ValueError):
    """Rows that are missing, doubled or unknown, told in one line.

    Attributes:
        missing, doubled, unknown: how many ids of each.
    """

    def __init__(self, message: str, missing: int, doubled: int, unknown: int) -> None:
        super().__init__(message)
        self.missing, self.doubled, self.unknown = missing, doubled, unknown


def check_row_ids(
    source: str,
    ids: Sequence[Hashable],
    expected: Collection[Hashable],
    *,
    unit: str,
    allow_doubled: bool = False,
    allow_unknown: bool = False,
    allow_missing: bool = False,
) -> None:
    """Compares the ids of a file's rows with those that it must have.

    Args:
        source: the file, for the error.
        ids: of its rows, in their order.
        expected: once each.
        unit: what an id is of, in the singular, such as "question".
    Raises:
        RowsError: with the counts and the first id of each kind.
    """
    wanted, given = set(expected), Counter(ids)
    missing = [] if allow_missing else [each for each in expected if each not in given]
    doubled = [] if allow_doubled else [each for each, times in given.items() if times > 1]
    unknown = [] if allow_unknown else [each for each in given if each not in wanted]
    said = [
        f"{counted(len(found), unit)} {what} (first: {printable(str(found[0]))})"
        for found, what in ((missing, "without a row"), (doubled, "with several rows"), (unknown, "that nobody asked"))
        if found
    ]
    if said:
        message = f"{source}: {'; '.join(said)}; expected one row for each of {counted(len(wanted), unit)}"
        raise RowsError(message, len(missing), len(doubled), len(unknown))
