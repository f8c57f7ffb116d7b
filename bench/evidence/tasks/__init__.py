"""Fine-tuning in `make evidence`: tasks of another toy world, learned from the kept weights or from none."""

from __future__ import annotations
