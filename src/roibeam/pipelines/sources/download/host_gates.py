"""How many requests one host gets at once, and not before when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

_SWEEP_AT = 4096  # hosts that are only remembered because they asked for a pause


class HostGates:
    """Turns at hosts. A host that nobody waits for and that asked for no pause takes no memory."""

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

    def pause(self, host: str, seconds: float) -> None:
        """Nobody gets a turn at `host` for so long. Called by whoever has one."""
        gate = self._gates[host]
        gate.closed_until = max(gate.closed_until, monotonic() + seconds)


class _Gate:
    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.users = 0
        self.closed_until = 0.0

    def is_needed(self) -> bool:
        return self.users > 0 or self.closed_until > monotonic()
