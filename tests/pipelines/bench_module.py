"""Scripts of bench/ as modules, for tests of what they measure."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def bench_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    """These scripts import each other; all tests of a file that imports this fixture have it."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))
