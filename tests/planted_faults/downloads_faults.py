"""Faults of downloads, captions and archives."""

from __future__ import annotations

from fault import Fault

FAULTS: tuple[Fault, ...] = ()
