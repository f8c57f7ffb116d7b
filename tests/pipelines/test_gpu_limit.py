"""How many GPUs there can be, said without torch: what leaves a doubt is never refused. The machines are folders."""

from pathlib import Path

import pytest
import torch

from roibeam.pipelines.common.compute import check_device, most_gpus

TWO_GPUS = ("proc/driver/nvidia/gpus/0000:01", "proc/driver/nvidia/gpus/0000:02", "dev/nvidia0", "dev/nvidia1")


@pytest.mark.parametrize(
    ("there", "visible", "most"),
    [
        ((), None, 0),
        (("dev/nvme0n1", "dev/nvram"), None, 0),  # no GPU's
        (("dev/kfd",), None, None),  # AMD's
        (("dev/kfd",), "", None),
        (("dev/dxg",), None, None),  # WSL's
        (("dev/nvmap", "dev/nvhost-ctrl"), None, None),  # a Jetson's
        (("dev/nvidia0",), None, None),  # a sandbox shows no /proc/driver
        (("proc/driver/nvidia/version",), None, None),
        (TWO_GPUS, None, 2),
        (TWO_GPUS[:2], None, 2),  # the files in /dev are made when CUDA starts
        ((*TWO_GPUS[:1], *TWO_GPUS[2:]), None, 2),
        ((*TWO_GPUS, "proc/driver/nvidia/capabilities/gpu0/mig/gi1"), None, None),
        (TWO_GPUS, "MIG-a,MIG-b,MIG-c", 3),
        (TWO_GPUS, "1", 1),
        (TWO_GPUS, "GPU-a,GPU-b,GPU-c", 2),
        (TWO_GPUS, "", 0),
        (TWO_GPUS, "-1", 0),
    ],
)
def test_the_limit_is_never_below_what_cuda_may_give(
    there: tuple[str, ...], visible: str | None, most: int | None, tmp_path: Path
) -> None:
    for path in there:
        (tmp_path / path).mkdir(parents=True)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert most_gpus(tmp_path, environment, platform="linux", driver_loads=lambda: False) == most
    assert most_gpus(tmp_path, environment, platform="win32", driver_loads=lambda: False) is None


def test_a_driver_that_loads_leaves_it_to_torch(tmp_path: Path) -> None:
    """Its kernel part may be loaded no sooner than CUDA starts."""
    assert most_gpus(tmp_path, {}, platform="linux", driver_loads=lambda: True) is None


def test_this_machine_is_not_denied_what_torch_sees() -> None:
    count = torch.cuda.device_count()
    most = most_gpus()
    assert most is None or most >= count
    for asked in ("auto", "cpu", *(f"cuda:{number}" for number in range(count))):
        check_device(asked)
