"""How many shards a run has in work at once, as far as its options say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from roibeam.features.counted import counted


@dataclass(frozen=True)
class Slots:
    """
    Attributes:
        shards: in work at once; None where only the cluster knows.
        computing: of them at full speed: processes may share a GPU.
        words: what they are, for people.
    """

    shards: int | None
    computing: int | None
    words: str


def slots_of(runner: str, flags: Sequence[str], *, workers: int = 1, device: str = "cpu", gpus: int = 0) -> Slots:
    """
    Args:
        runner: as of `runner_flags`.
        flags: all Beam options of the run.
        workers: processes of the local runner.
        device: what the detector runs on.
        gpus: of this machine.
    """
    value = {flag.partition("=")[0]: flag.partition("=")[2] for flag in flags}
    if runner == "local":
        return _local(workers, device, gpus)
    if runner == "portable":
        processes = _number(value.get("--sdk_worker_parallelism")) or 1
        return Slots(processes, processes, counted(processes, "worker process", "worker processes"))
    if runner == "flink":
        slots = _number(value.get("--parallelism"))
        if slots is None:
            return Slots(None, None, "the cluster's task slots; say how many: -- --parallelism=N")
        return Slots(slots, slots, f"{counted(slots, 'task slot')} (--parallelism), one on each TaskManager")
    if runner == "spark":
        return _spark(value.get("--spark_master_url", ""))
    if runner == "dataflow":
        name = "--max_num_workers" if "--max_num_workers" in value else "--num_workers"
        machines = _number(value.get(name))
        if machines is None:
            return Slots(None, None, "as many machines as Dataflow takes; say how many at most: -- --max_num_workers=N")
        return Slots(machines, machines, f"{counted(machines, 'machine')} ({name}), one process on each")
    workers_of_it = _number(value.get("--direct_num_workers"))
    words = f"{workers_of_it} (--direct_num_workers)" if workers_of_it else f"as many as {runner} takes"
    return Slots(workers_of_it, workers_of_it, words)


def _local(workers: int, device: str, gpus: int) -> Slots:
    words = counted(workers, "process", "processes") + (" (--workers)" if workers > 1 else "")
    if not device.startswith("cuda"):
        return Slots(workers, workers, words)
    there = 1 if ":" in device else max(gpus, 1)
    computing = min(workers, there)
    if workers < there:
        words += f" on {workers} of {there} GPUs; --workers {there} takes all"
    elif workers > there:
        words += f" that share {counted(there, 'GPU')}"
    else:
        words += f" on {counted(there, 'GPU')}"
    return Slots(workers, computing, words)


def _spark(master: str) -> Slots:
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if local is None:
        return Slots(None, None, "cores of all executors, which Beam's options do not say")
    number = (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    return Slots(number, number, f"{counted(number, 'core')} ({master})")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None
