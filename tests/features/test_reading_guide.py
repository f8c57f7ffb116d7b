"""The snippets of docs/reading.md run, in their order, on a store of a few records."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from store_examples import make_record, write_store

GUIDE = Path(__file__).parents[2] / "docs" / "reading.md"


def test_the_guides_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    shards = [[make_record(f"i{n:02}", 3, seed=n) for n in itertools.islice(numbers, 10)] for _ in range(3)]
    write_store(tmp_path / "store", shards)
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 6
    names: dict[str, Any] = {}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{GUIDE.name}, snippet {number}", "exec"), names)
    assert names["state"]["next_sample"] == 30 + 2 * 4  # the second epoch, two batches of four
    assert sorted(path.name for path in Path("local").glob("part-*.lmdb"))
