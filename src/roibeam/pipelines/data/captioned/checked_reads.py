"""`--checksums`: how many of the records that a training or an evaluation reads are compared with their checksums."""

from __future__ import annotations

ALL, SAMPLE = "all", "sample"
SAMPLE_ONE_IN = 16


def checked_one_in(checksums: str) -> int:
    """Of so many records one is compared.

    Raises:
        ValueError: for another word than `ALL` or `SAMPLE`.
    """
    if checksums not in (ALL, SAMPLE):
        raise ValueError(f"--checksums {checksums!r}: expected {ALL} or {SAMPLE} (one record in {SAMPLE_ONE_IN})")
    return 1 if checksums == ALL else SAMPLE_ONE_IN
