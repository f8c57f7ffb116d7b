"""How the threads of a training wait for one another on a CPU: spinning, or asleep where other programs compute.

An OpenMP thread that waits for the next piece of work spins for about a millisecond. On free cores that is fastest:
small models train 1.3 to 2.6 times as fast as with threads that sleep at once. Beside other programs it keeps the core
from the thread that it waits for: then they train up to 10 times as slowly (`python bench/thread_waiting.py`). So it is
decided when a training begins, by what others computed until then. The results are the same bit for bit.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)
POLICY = "OMP_WAIT_POLICY"
_CHOSEN = (POLICY, "GOMP_SPINCOUNT", "OMP_NUM_THREADS")  # the user has decided, or waits for nothing
_BUSY = 0.3  # cores: less is what a machine does by itself
_LEAST_SECONDS = 0.05  # ticks of the processor's clock are 0.01 s


class CoreTimes(NamedTuple):
    """Seconds since some start that all cores together, and this process with its children, have computed, and the
    seconds that went by."""

    all_cores: float
    own: float
    passed: float

    @classmethod
    def now(cls) -> CoreTimes | None:
        """None where the system does not tell."""
        try:
            words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        except OSError:
            return None
        user, nice, system = (int(word) for word in words[:3])
        own = os.times()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system) / ticks, own.user + own.system, own.elapsed)


def busy_elsewhere(before: CoreTimes, after: CoreTimes) -> float:
    """Cores that other programs kept busy between two moments, on average; 0 where too little time has passed."""
    passed = after.passed - before.passed
    if passed < _LEAST_SECONDS:
        return 0.0
    return max(0.0, (after.all_cores - before.all_cores) - (after.own - before.own)) / passed


_STARTED = CoreTimes.now()  # commands import this first of all


def sleep_beside_others() -> None:
    """Lets threads that wait sleep, where other programs have kept a core busy since the command began; of this process
    and those that it starts. Must be called before torch is loaded, which reads it once."""
    now = CoreTimes.now()
    if _STARTED is None or now is None or "torch" in sys.modules or any(name in os.environ for name in _CHOSEN):
        return
    busy = busy_elsewhere(_STARTED, now)
    if busy < _BUSY:
        return
    os.environ[POLICY] = "PASSIVE"
    told = "other programs keep %.1f of %s cores busy: threads that wait sleep (%s=PASSIVE)"
    logger.info(told, busy, os.cpu_count(), POLICY)
