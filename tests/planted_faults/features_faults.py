"""Faults of records, shards, stores and their exchange formats."""

from __future__ import annotations

from fault import Fault

FAULTS: tuple[Fault, ...] = ()
