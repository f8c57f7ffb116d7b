"""The result file of the task labels: one JSON object a line, {"id": "17", "label": "cat"}."""

from __future__ import annotations

import json
from collections.abc import Sequence

from roibeam.features.printable import printable
from roibeam.pipelines.finetuning.results.row_ids import OFFICIAL, check_row_ids


def read_label_results(path: str, ids: Sequence[str], rules: str) -> dict[str, str]:
    """Label by id. Official rules take the last of several lines; strict ones refuse them.

    Raises:
        RowsError: for missing, unknown and, by strict rules, doubled ids.
        ValueError: naming the line that is no such object.
    """
    rows: list[tuple[str, str]] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            name, label = (entry.get("id"), entry.get("label")) if isinstance(entry, dict) else (None, None)
            if not (isinstance(name, str) and isinstance(label, str)):
                shown = printable(line.decode("utf-8", "replace"), 60)
                raise ValueError(
                    f"{path!r}, line {number}: expected an object with the texts id and label, got {shown}"
                )
            rows.append((name, label))
    check_row_ids(repr(path), [row[0] for row in rows], ids, unit="row", allow_doubled=rules == OFFICIAL)
    return dict(rows)
