"""`roibeam` with a detector whose calls take a minute each after the first AFTER ones.

python hanging_detector_run.py AFTER extract ...
"""

import sys
import time
from typing import Any

import torch

from roibeam.pipelines.cli import main as cli
from roibeam.pipelines.extract.shard import shard_job


def main() -> None:
    after = int(sys.argv.pop(1))
    build, calls = shard_job.build_detector, 0

    def build_hanging(*arguments: Any, **options: Any) -> Any:
        detector = build(*arguments, **options)
        forward = detector.forward

        def slow(images: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            deadline = time.monotonic() + (60 if calls > after else 0)
            while time.monotonic() < deadline:  # in C++ code, like a real one
                torch.randn(500, 500) @ torch.randn(500, 500)
            return forward(images, **more)

        detector.forward = slow
        return detector

    shard_job.build_detector = build_hanging
    torch.set_num_threads(1)
    cli.main()


if __name__ == "__main__":
    main()
