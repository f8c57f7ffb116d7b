"""Names of a package that are imported when they are first used, so that `import roibeam` costs nothing.

Standard library only: the `__init__` files of the package and its floors import this file and nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, files: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for the `__init__` of a package.

    Args:
        package: its `__name__`.
        files: name -> the module that has it, or, for a room of the package, is it.
    Raises:
        AttributeError: by `__getattr__`, for a name that is not among them.
    """

    def getattr_(name: str) -> Any:
        if name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(files[name])
        return module if files[name] == f"{package}.{name}" else getattr(module, name)

    return getattr_, lambda: sorted(files)
