"""A list of names or paths, told from one alone: Python would take one text for a list of its letters."""

from __future__ import annotations

import os


def check_list(given: object, name: str) -> None:
    """
    Args:
        given: for a parameter of several names or paths; None passes.
        name: of the parameter.
    Raises:
        ValueError: for one text or path in place of a list.
    """
    if isinstance(given, str | bytes | os.PathLike):
        raise ValueError(f"{name} is a list, got one alone, {given!r}; write [{given!r}]")


def check_lists(of: object, *names: str) -> None:
    """`check_list` of these attributes, for `__post_init__` of a dataclass."""
    for name in names:
        check_list(getattr(of, name), name)
