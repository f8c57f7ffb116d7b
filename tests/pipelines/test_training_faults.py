"""Training killed anywhere, in one process or one of two, goes on to the bits of the run that nothing happened to."""

import os
import signal
import time
from pathlib import Path

import pytest
from ranks import run_ranks, said, start_ranks
from small_pretraining import Training, settings
from toy_training import assert_equal_checkpoints, log_of
from training_fail_points import BACKWARD, JSON, LOG_LINE, NAMED, PLACES, REMOVE, RENAME, TENSORS, Killed
from training_signals import Signalled, Waiting

# Ten captions and four samples a step: checkpoints and evaluations come in mid-epoch.
EVALUATED = {"evaluate_every": 3, "best_by": "weights", "average_rate": 0.9}
SETTINGS = settings(steps=7, accumulation=2, checkpoint_every=2, keep=1, **EVALUATED)


def training(folder: Path, num_ranks: int, workers: int = 0) -> Training:
    return Training(folder, SETTINGS, 2 // num_ranks, {"dropout": 0.1, "workers": workers})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By number of processes, the folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for ranks in (1, 2):
        codes = run_ranks(training(folder / str(ranks), ranks), ranks, folder / f"said-{ranks}")
        assert codes == [0] * ranks, said(folder / f"said-{ranks}")
    return {ranks: folder / str(ranks) for ranks in (1, 2)}


def assert_goes_on(folder: Path, num_ranks: int, undisturbed: Path, workers: int = 0) -> None:
    """The same call again ends with every checkpoint that stays, each log and nothing else as undisturbed."""
    logs = folder.with_name("said-again")
    assert run_ranks(training(folder, num_ranks, workers), num_ranks, logs) == [0] * num_ranks, said(logs)
    want, got = ({path.name: path for path in (run / "checkpoints").iterdir()} for run in (undisturbed, folder))
    assert got.keys() == want.keys()
    for name in want:
        assert_equal_checkpoints(want[name], got[name])
    assert [line["step"] for line in log_of(folder)] == list(range(1, SETTINGS.steps + 1))
    for name in ("log.jsonl", "evaluation.jsonl"):
        assert log_of(folder, name) == log_of(undisturbed, name)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in undisturbed.iterdir())


def assert_mended(
    undisturbed: Path, folder: Path, num_ranks: int, place: str, count: int, rank: int = 0, workers: int = 0
) -> None:
    logs = folder.with_name(f"said-{place}-{count}")
    codes = run_ranks(Killed(training(folder, num_ranks, workers), place, count, rank), num_ranks, logs)
    assert codes[rank] == -9 and f"fail point: {place}, number {count}" in said(logs), said(logs)
    assert_goes_on(folder, num_ranks, undisturbed, workers)


@pytest.mark.faults
@pytest.mark.parametrize(("place", "count"), [(BACKWARD, 9), (TENSORS, 8), (REMOVE, 1)])
def test_a_killed_run_has_the_same_bits(undisturbed: dict[int, Path], tmp_path: Path, place: str, count: int) -> None:
    """In the middle of step 5, of the second checkpoint, and of the removal of the first."""
    assert_mended(undisturbed[1], tmp_path / "run", 1, place, count)


# Of 7 steps: 14 backward passes; lines of 4 evaluations between those of the steps; checkpoints after 2, 3 (the best so
# far, perhaps), 4, 6 and 7, each with four files of tensors and three of JSON.
COUNTS = {BACKWARD: range(1, 15), LOG_LINE: range(1, 12), TENSORS: range(1, 17), JSON: range(2, 13)}
COUNTS |= {RENAME: range(1, 5), NAMED: range(1, 5), REMOVE: range(1, 3)}


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_in_one_process(undisturbed: dict[int, Path], tmp_path: Path, place: str) -> None:
    for count in COUNTS[place]:
        assert_mended(undisturbed[1], tmp_path / f"run-{count}" / "run", 1, place, count)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(("place", "count", "rank"), [(BACKWARD, 10, 1), (TENSORS, 7, 0)])
def test_killed_in_one_of_two(undisturbed: dict[int, Path], tmp_path: Path, place: str, count: int, rank: int) -> None:
    assert_mended(undisturbed[2], tmp_path / "run", 2, place, count, rank)


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize(
    ("place", "count", "rank"),
    [
        (BACKWARD, 5, 0), (BACKWARD, 5, 1), (BACKWARD, 14, 0), (LOG_LINE, 4, 0), (LOG_LINE, 7, 0), (TENSORS, 2, 1),
        (JSON, 6, 0), (RENAME, 2, 0), (NAMED, 2, 0), (REMOVE, 1, 0),
    ],
)  # fmt: skip
def test_killed_anywhere_in_two(
    undisturbed: dict[int, Path], tmp_path: Path, place: str, count: int, rank: int
) -> None:
    assert_mended(undisturbed[2], tmp_path / "run", 2, place, count, rank)


# Mid-epoch, in the middle of an accumulation, of a checkpoint, of a line, and while an old checkpoint goes.
@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize(
    ("num_ranks", "place", "count", "rank"),
    [
        (1, BACKWARD, 9, 0), (1, BACKWARD, 10, 0), (1, TENSORS, 8, 0), (1, LOG_LINE, 7, 0), (1, REMOVE, 1, 0),
        (2, BACKWARD, 9, 1), (2, BACKWARD, 10, 0), (2, TENSORS, 7, 0), (2, RENAME, 2, 0),
    ],
)  # fmt: skip
def test_killed_with_workers_that_make_batches_ahead(
    undisturbed: dict[int, Path], tmp_path: Path, num_ranks: int, place: str, count: int, rank: int
) -> None:
    """Mended to the bits of a run without workers, whose place in the data is that of the steps, not of the batches
    that lay ready."""
    assert_mended(undisturbed[num_ranks], tmp_path / "run", num_ranks, place, count, rank, workers=2)


# --- told to stop ---


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_step_be_saved(undisturbed: dict[int, Path], tmp_path: Path, number: signal.Signals) -> None:
    folder, logs = tmp_path / "run", tmp_path / "said"
    assert run_ranks(Signalled(training(folder, 1), number, 9), 1, logs) == [128 + number]
    assert f"{number.name}: finishing the step and writing a checkpoint first" in said(logs)
    checkpoint = folder / "checkpoints" / "step-00000005"
    line = f"stopped by {number.name} after step 5 of 7; its checkpoint {checkpoint} stays"
    assert line in said(logs)
    assert checkpoint.is_dir() and "Traceback" not in said(logs)
    assert "Not finished." in (folder / "report.html").read_text()
    assert_goes_on(folder, 1, undisturbed[1])


@pytest.mark.faults
def test_a_launcher_s_signal_leaves_the_loader_to_the_run(undisturbed: dict[int, Path], tmp_path: Path) -> None:
    """It goes to all of them; without batches the step could not end."""
    folder, logs = tmp_path / "run", tmp_path / "said"
    codes = run_ranks(Signalled(training(folder, 1, workers=2), signal.SIGTERM, 9, to_group=True), 1, logs)
    assert codes == [143] and "Traceback" not in said(logs), said(logs)
    assert (folder / "checkpoints" / "step-00000005").is_dir()
    assert_goes_on(folder, 1, undisturbed[1], workers=2)


@pytest.mark.faults
def test_a_signal_to_one_process_stops_both_after_the_same_step(undisturbed: dict[int, Path], tmp_path: Path) -> None:
    folder, logs = tmp_path / "run", tmp_path / "said"
    codes = run_ranks(Signalled(training(folder, 2), signal.SIGTERM, 5, rank=1), 2, logs)
    assert codes == [143, 143], said(logs)
    assert said(logs).count("stopped by SIGTERM after step 3 of 7") == 2
    assert said(logs).count("learning rate") == 1  # one process of the two tells what comes
    assert_goes_on(folder, 2, undisturbed[2])


def test_a_signal_in_the_last_step_is_too_late_to_matter(tmp_path: Path) -> None:
    folder, logs = tmp_path / "run", tmp_path / "said"
    assert run_ranks(Signalled(training(folder, 1), signal.SIGTERM, 14), 1, logs) == [0], said(logs)
    assert (folder / "checkpoints" / "step-00000007").is_dir()


@pytest.mark.slow
@pytest.mark.faults
def test_a_second_ctrl_c_later_on_interrupts_at_once(tmp_path: Path) -> None:
    """As when a step hangs; at the same moment a launcher may send a second one, which must not count."""
    logs = tmp_path / "said"
    logs.mkdir()
    (process,) = start_ranks(Waiting(tmp_path), 1, logs)
    while not (tmp_path / "here").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(4)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(20)
    assert process.exitcode == 1 and "KeyboardInterrupt" in said(logs)
