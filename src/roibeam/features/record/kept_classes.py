"""How many classes of a region's distribution are kept, as people write it: `top-<k>`."""

from __future__ import annotations


def top_k_of(distribution: str) -> int | None:
    """k of "top-<k>", a whole number from 1; None for any other word."""
    prefix, _, number = distribution.partition("-")
    return int(number) if prefix == "top" and number.isdecimal() and int(number) > 0 else None
