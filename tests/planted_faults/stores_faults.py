"""Faults of extraction jobs, Beam, and copies of stores."""

from __future__ import annotations

from fault import Fault

FAULTS: tuple[Fault, ...] = ()
