"""Named places of a training run where a process can be ended as kill -9 would, each time at the same one."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roibeam.pipelines.training import checkpoint, hooks
from roibeam.pipelines.training.run_folder.train_log import TrainLog
from roibeam.pipelines.training.train_step import TrainStep

BACKWARD = "backward"  # after the n-th backward pass: inside an accumulation, where there are several in a step
LOG_LINE = "log line"  # when the n-th line, of a step or an evaluation, is half written
TENSORS = "tensors"  # before the n-th file of tensors of a checkpoint is written
JSON = "json"  # before the n-th JSON file
RENAME = "rename"  # before the n-th checkpoint gets its name
NAMED = "named"  # when the n-th has it
REMOVE = "remove"  # when the n-th folder that goes is half removed
PLACES = (BACKWARD, LOG_LINE, TENSORS, JSON, RENAME, NAMED, REMOVE)


@dataclass(frozen=True)
class Killed:
    """Does `work`, and is killed in process `rank` when it comes to `place` for the `count`-th time, from 1."""

    work: Callable[[], object]
    place: str
    count: int
    rank: int = 0

    def __call__(self) -> None:
        if os.environ.get("RANK", "0") == str(self.rank):
            _install(self.place, self.count)
        self.work()


def _install(place: str, count: int) -> None:
    came = 0

    def reached(here: str, before_end: Callable[[], object] = lambda: None) -> None:
        nonlocal came
        if here == place:
            came += 1
            if came == count:
                before_end()
                os.write(2, f"fail point: {place}, number {count}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def first(here: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            reached(here)
            return call(*arguments, **options)

        return counted

    for name in ("save_file", "save_model"):
        setattr(checkpoint, name, first(TENSORS, getattr(checkpoint, name)))
    checkpoint.write_json = first(JSON, checkpoint.write_json)
    put, rmtree, loss, write = checkpoint.put_in_place, checkpoint.shutil.rmtree, TrainStep._loss, TrainLog._write

    def put_counted(*arguments: Any) -> None:
        reached(RENAME)
        put(*arguments)
        reached(NAMED)

    def remove_counted(folder: Any, *arguments: Any, **options: Any) -> None:
        if ".removing-" in str(folder):
            reached(REMOVE, (folder / "state.json").unlink)
        rmtree(folder, *arguments, **options)

    def loss_counted(*arguments: Any) -> Any:
        result = loss(*arguments)
        result.register_hook(lambda _: reached(BACKWARD))
        return result

    def write_counted(self: TrainLog, name: str, *arguments: Any) -> Any:
        reached(LOG_LINE, lambda: (self._files[name].write('{"step": 1'), self._files[name].flush()))
        return write(self, name, *arguments)

    checkpoint.put_in_place = put_counted
    checkpoint.shutil.rmtree = remove_counted  # type: ignore[assignment]
    TrainStep._loss = loss_counted  # type: ignore[method-assign]
    TrainLog._write = write_counted  # type: ignore[method-assign]
    assert hooks.save_checkpoint is checkpoint.save_checkpoint  # which finds the changed names in its module
