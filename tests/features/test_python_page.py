"""docs/python.md: its table names every array of a store. tests/test_documentation.py runs its snippets."""

from __future__ import annotations

import re
from pathlib import Path

from roibeam.features.writing.writer_input import RegionArrays

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_table_names_every_array() -> None:
    table = TEXT.partition("| name | shape |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall("`(.*?)`", line.split("|")[1])}
    assert named == set(RegionArrays.__annotations__) | {"captions"}
