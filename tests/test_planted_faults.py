"""The planted faults (planted_faults/) are in date: every text stands in its function, every test exists."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from soak_share import share_of

SCRIPT = Path(__file__).with_name("planted_faults") / "plant.py"


@pytest.fixture(scope="module")
def listed():
    spec = importlib.util.spec_from_file_location("plant", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fault_can_be_planted_and_names_a_test(listed):
    assert len({fault.name for fault in listed.FAULTS}) == len(listed.FAULTS) >= 40
    for fault in listed.FAULTS:
        place, text = listed.planted(fault)
        assert text != (listed.ROOT / place).read_text("utf-8")
        file, _, test = fault.test.partition("[")[0].partition("::")
        assert f"def {test.rpartition('::')[2]}(" in (listed.ROOT / file).read_text("utf-8"), fault.name


def test_a_text_that_is_gone_is_told(listed):
    fault = listed.FAULTS[0]._replace(found="a text that is nowhere")
    with pytest.raises(ValueError, match=f"{fault.name}: .* stands 0 times in {fault.function}; expected once"):
        listed.planted(fault)


@pytest.mark.soak
def test_every_planted_fault_is_noticed(listed):
    """All of them, or as many as the share of a soak says."""
    chosen = share_of([fault.name for fault in listed.FAULTS], "planted faults")
    done = subprocess.run([sys.executable, str(SCRIPT), *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
