"""Names of a package that are imported when they are first used, so that `import roibeam` costs nothing.

The names stand in the `__init__.pyi` beside each `__init__.py`, which type checkers read and `lazy_loader` too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lazy_loader


def lazy_names(package: str, init: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the `__init__` of a package, from its `__name__` and `__file__`."""
    eager = os.environ.pop("EAGER_IMPORT", None)  # of lazy_loader: it would import torch and Beam at once
    try:
        load, names_, names = lazy_loader.attach_stub(package, init)
    finally:
        if eager is not None:
            os.environ["EAGER_IMPORT"] = eager

    def getattr_(name: str) -> Any:
        if name not in names:  # as Python says it
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(name)

    return getattr_, names_, names
