"""Scripts of bench/ keep up with what they measure: each imports. Official checkouts are read later, by options."""

from __future__ import annotations

import importlib
import sys

import pytest
from bench_module import BENCH

SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_imports(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    earlier = set(sys.modules)
    try:
        importlib.import_module(script)
    finally:
        # Their names are common ones: models, engine.
        for name in set(SCRIPTS) - earlier:
            sys.modules.pop(name, None)
