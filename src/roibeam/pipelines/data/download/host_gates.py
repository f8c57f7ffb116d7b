"""How many requests one host gets at once, and not before when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

_SWEEP_AT = 4096  # hosts that are only remembered because they asked for a pause
_MOST_LONG = 5  # answers in a row that ask for a longer pause than we make, before a host is given up


class HostGates:
    """Turns at hosts. A host that nobody waits for, and that asked to be left alone for no time, takes no memory."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._gates: dict[str, _Gate] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Waits until `host` may get one more request."""
        gate = self._gates.get(host)
        if gate is None:
            if len(self._gates) >= _SWEEP_AT:
                self._gates = {name: old for name, old in self._gates.items() if old.is_needed()}
            gate = self._gates[host] = _Gate(self._per_host)
        gate.users += 1
        try:
            async with gate.places:
                while (seconds := gate.closed_until - monotonic()) > 0:
                    await asyncio.sleep(seconds)
                yield
        finally:
            gate.users -= 1
            if not gate.is_needed():
                self._gates.pop(host, None)

    def asked_too_long(self, host: str, seconds: float) -> None:
        """`host` asked for a longer pause than we make. Called by whoever has a turn."""
        gate = self._gates[host]
        gate.num_long += 1
        gate.away_until = monotonic() + seconds

    def gave(self, host: str) -> None:
        """`host` gave what it was asked for. Called by whoever has a turn."""
        self._gates[host].num_long = 0

    def is_given_up(self, host: str) -> bool:
        """Whether `host` is not to be asked now: one answer may be about one image, several are about all of them."""
        gate = self._gates[host]
        return gate.num_long >= _MOST_LONG and gate.away_until > monotonic()

    def pause(self, host: str, seconds: float) -> None:
        """Nobody gets a turn at `host` for so long. Called by whoever has one."""
        gate = self._gates[host]
        gate.closed_until = max(gate.closed_until, monotonic() + seconds)


class _Gate:
    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.users = 0
        self.closed_until = self.away_until = 0.0
        self.num_long = 0  # answers in a row that asked for too long a pause

    def is_needed(self) -> bool:
        return self.users > 0 or self.closed_until > monotonic() or self.away_until > monotonic()
