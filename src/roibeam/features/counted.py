"""Numbers of things and bytes in sentences for people."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """ "1 image", "2,000 images"; `plural` where an s is not enough: counted(2, "entry", "entries")."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def byte_count(num_bytes: float) -> str:
    """ "0.614 MB", "1.200 GB"."""
    return f"{num_bytes / 1e9:.3f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3f} MB"
