"""Training that is told to stop, in a process of its own."""

import dataclasses
import os
import subprocess
import time
from pathlib import Path

from small_pretraining import Training


@dataclasses.dataclass(frozen=True)
class Signalled:
    """Does `work`; its process sends itself `number` in the forward pass of micro-batch `count` of process `rank`."""

    work: Training
    number: int
    count: int
    rank: int = 0
    # It leads a session, as under a launcher; another process sends the signal to all of that, its loader's too.
    to_group: bool = False

    def __call__(self) -> None:
        from roibeam.pipelines.common.console.progress import configure_logging
        from roibeam.pipelines.common.console.termination import StoppedBySignalError
        from roibeam.pipelines.training.train_step import TrainStep

        configure_logging()
        if self.to_group:
            os.setsid()
        loss, came = TrainStep._loss, 0

        def loss_and_signal(*arguments: object) -> object:
            nonlocal came
            came += 1
            if came == self.count and os.environ.get("RANK", "0") == str(self.rank):
                if self.to_group:
                    kill = ["kill", f"-{self.number}", "--", f"-{os.getpid()}"]
                    subprocess.run(kill, check=True, start_new_session=True)
                else:
                    os.kill(os.getpid(), self.number)
            return loss(*arguments)  # type: ignore[arg-type]

        TrainStep._loss = loss_and_signal  # type: ignore[method-assign, assignment]
        try:
            self.work()
        except StoppedBySignalError as stopped:
            os.write(2, f"{stopped}\n".encode())
            os._exit(stopped.exit_code)


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Waits where signals are only noted."""

    folder: Path

    def __call__(self) -> None:
        from roibeam.pipelines.common.console.termination import StopSignals

        with StopSignals("waiting"):
            (self.folder / "here").touch()
            while True:
                time.sleep(0.05)
