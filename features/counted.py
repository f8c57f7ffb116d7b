"""Numbers of things in sentences for people."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """ "1 image", "2,000 images"; `plural` where an s is not enough: counted(2, "entry", "entries")."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
