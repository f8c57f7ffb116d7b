"""Faults of the detector and of the engine around it."""

from __future__ import annotations

from fault import Fault

FAULTS: tuple[Fault, ...] = ()
