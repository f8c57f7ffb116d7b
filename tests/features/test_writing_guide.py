"""The snippets of docs/writing.md run, in their order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from roibeam.features.verify import verify_store
from roibeam.features.writing.given_arrays import RegionArrays

GUIDE = Path(__file__).parents[2] / "docs" / "writing.md"
TEXT = GUIDE.read_text(encoding="utf-8")


def test_the_guides_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{GUIDE.name}, snippet {number}", "exec"), names)
    assert len(snippets) == 4 and names["record"].num_regions == 2
    assert names["writer"].manifest.num_records == 5 and names["manifest"].annotations.captions == 2
    assert verify_store("store", deep=True) == [] and verify_store("rows", deep=True) == []


def test_the_table_names_every_array() -> None:
    table = TEXT.partition("| name | shape |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall("`(.*?)`", line.split("|")[1])}
    assert named == set(RegionArrays.__annotations__) | {"captions"}
