"""Work done by several processes at once, as torchrun starts them, without its seconds."""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from prepared_processes import PROCESSES


def run_ranks(work: Callable[[], object], num_ranks: int, folder: Path, *, seconds: float = 120) -> list[int]:
    """`work` in each of `num_ranks` processes with torchrun's environment; alone, without it.

    When one ends badly the others are ended too, as torchrun does.

    Args:
        work: picklable, of a module that is no test: the others find it from any folder and any start of pytest.
        folder: where they leave what they say, in files called rank-0, rank-1, ...
    Returns:
        their exit codes, or minus the signals that ended them.
    Raises:
        AssertionError: when they take longer than `seconds`.
    """
    module = type(work).__module__
    assert not module.rpartition(".")[2].startswith("test_"), f"{module} cannot be imported in every process"
    folder.mkdir(parents=True, exist_ok=True)
    processes = start_ranks(work, num_ranks, folder)
    deadline = time.monotonic() + seconds
    while any(process.is_alive() for process in processes):
        late = time.monotonic() > deadline
        if late or any(process.exitcode not in (None, 0) for process in processes):
            own_end = time.monotonic() + 0.5
            for process in processes:
                process.join(max(0.0, own_end - time.monotonic()))  # all of them may be ending by themselves
            for process in processes:
                process.kill()
            assert not late, f"no end after {seconds} s: {said(folder)[-2000:]}"
        time.sleep(0.01)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def start_ranks(work: Callable[[], object], num_ranks: int, folder: Path) -> list[multiprocessing.Process]:
    """The processes of `run_ranks`, started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [PROCESSES.Process(target=_work, args=(work, n, num_ranks, port, folder)) for n in range(num_ranks)]
    for process in processes:
        process.start()
    return processes


def said(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("rank-*")))


def _work(work: Callable[[], object], rank: int, num_ranks: int, port: int, folder: Path) -> None:
    output = os.open(folder / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if num_ranks > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    torch.set_num_threads(1)
    work()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
