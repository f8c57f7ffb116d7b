"""How long the stages of an extraction took, image by image: for counters and summaries, in whole milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field


class Milliseconds:
    """Durations as whole milliseconds whose sum is that of the durations to the millisecond: what rounding takes from
    one, it gives to a later one. So a stage of 0.4 ms per image is not nothing after a million images."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._exact = 0.0
        self._told = 0

    def add(self, seconds: float) -> None:
        self._exact += seconds * 1000
        value = round(self._exact) - self._told
        self._told += value
        self.values.append(value)

    def summary(self) -> dict[str, int]:
        """{"count", "sum", "min", "max"}; all 0 when there is none."""
        return {
            "count": len(self.values),
            "sum": self._told,
            "min": min(self.values, default=0),
            "max": max(self.values, default=0),
        }


@dataclass
class StageTimes:
    """One extraction's times.

    Attributes:
        decode_ms: reading, decoding and preparing a photo, in its thread; those that failed count as well.
        net_ms: a photo's share of its detector call, waiting for the device included, for others not.
        write_ms: what the caller says of each record it wrote.
    """

    decode_ms: Milliseconds = field(default_factory=Milliseconds)
    net_ms: Milliseconds = field(default_factory=Milliseconds)
    write_ms: Milliseconds = field(default_factory=Milliseconds)

    def summaries(self) -> dict[str, dict[str, int]]:
        return {name: getattr(self, name).summary() for name in ("decode_ms", "net_ms", "write_ms")}
