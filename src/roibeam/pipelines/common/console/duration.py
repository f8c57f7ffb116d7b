"""Seconds as a person reads them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Seconds as a person reads them: "8 s", "3 min 20 s", "2 h 5 min"; "?" for None."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
