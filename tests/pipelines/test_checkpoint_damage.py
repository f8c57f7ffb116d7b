"""Checkpoints damaged from outside: refused by name, or passed with a word; never trained on unsaid."""

import errno
import logging
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from fuzz_child import in_a_child, limited_time, soak_seeds
from toy_training import ToyTask, assert_equal_checkpoints, config, log_of, run

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.pipelines.common.console.termination import failure_of
from roibeam.pipelines.training.checkpoint import Position, TrainingState, save_checkpoint
from roibeam.pipelines.training.model_files.model_folder import check_model_sums
from roibeam.pipelines.training.run_folder.files import SUMS_NAME

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `whole` run of twelve steps, and a `run` that was stopped after eight."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.set_num_threads(1)
    run(folder / "whole", settings=config(average_rate=0.9))
    run(folder / "run", settings=config(average_rate=0.9), stop_at_step=8)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped / "run", tmp_path / "run"))


def go_on(folder: Path, resume: bool | str = "auto") -> None:
    run(folder, settings=config(average_rate=0.9), resume=resume)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


FILES = (
    "config.json", "state.json", "optimizer.safetensors", "trained.safetensors", "rng-0.safetensors",
    "model/config.json", "model/model.safetensors",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_one_bit_is_refused_by_name_and_another_checkpoint_goes_on(stopped: Path, folder: Path, name: str) -> None:
    flip(folder / "checkpoints" / "step-00000008" / name, -1)
    with pytest.raises(ValueError, match=rf"step-00000008/{name}: is damaged: .*--resume-from step-00000004$"):
        go_on(folder)
    go_on(folder, "step-4")
    for step in ("step-00000008", "step-00000012"):
        assert_equal_checkpoints(stopped / "whole" / "checkpoints" / step, folder / "checkpoints" / step)
    assert log_of(folder) == log_of(stopped / "whole")


def test_who_reads_a_damaged_model_is_told_to_name_another_one(folder: Path) -> None:
    """`evaluate`, `convert`, `--from-run` have no --resume-from."""
    damaged = folder / "checkpoints" / "step-00000008"
    for name in ("model/model.safetensors", SUMS_NAME):
        flip(damaged / name, -3)
        with pytest.raises(ValueError, match=r"is damaged: .*; restore it, or name another one: .*/step-00000004$"):
            check_model_sums(damaged / "model")


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--resume-from step-7: .* it has step-00000004, step-00000008$"):
        go_on(folder, "step-7")


def test_later_checkpoints_do_not_push_out_those_of_the_run_that_goes_on(folder: Path) -> None:
    """With one that stays, step 6's would give way to step 8's, which is none of this run any more."""
    run(folder, settings=config(average_rate=0.9, keep=1), resume="step-4", stop_at_step=6)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000006"]


def test_a_checkpoint_from_before_there_were_sums_is_read_with_one_warning(
    stopped: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "checkpoints" / "step-00000008" / SUMS_NAME).unlink()
    go_on(folder)
    assert len([line for line in caplog.messages if "without a check for damage" in line]) == 1
    last = "checkpoints/step-00000012"
    assert_equal_checkpoints(stopped / "whole" / last, folder / last)


def test_a_log_that_was_cut_from_outside_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = (folder / "log.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "log.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:-3])
    go_on(folder)
    assert any("log.jsonl lacks 3 steps up to the checkpoint (the first: 6)" in line for line in caplog.messages)


def test_a_second_training_in_a_folder_is_refused_and_a_lock_that_nobody_holds_is_not(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with store_lock(folder), pytest.raises(ValueError, match="another training is writing this folder; wait for it"):
        go_on(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / ".lock").touch()
    go_on(folder)
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize("room", [1, 6000])
def test_a_checkpoint_that_does_not_fit_is_one_line_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    """A limit of file size takes the place of a full disk: errors come the same way, of safetensors and Python."""
    task = ToyTask()
    state = TrainingState(task.model, torch.optim.AdamW(task.model.parameters()))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="cannot write the checkpoint") as raised:
            save_checkpoint(tmp_path, state, {"words": ["x" * 9000]}, Position(3, 12), {}, Accelerator(cpu=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.EFBIG
    said = failure_of(raised.value)
    assert said.is_expected and f"{tmp_path}/checkpoints/step-00000003" in said.line
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "log.jsonl"])
def test_a_pipe_in_place_of_a_file_of_the_run_is_not_waited_for(folder: Path, name: str) -> None:
    """Opening it would wait for a writer, for ever."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with limited_time(20), pytest.raises(ValueError, match=f"{name}: is not a regular file; take it away"):
        go_on(folder)


def _overwritten(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data))
    page = data[at : at + 512]
    return data[:at] + choose.choice([bytes, choose.randbytes])(len(page)) + data[at + len(page) :]


def _other(path: Path, choose: random.Random) -> bytes:
    return choose.choice([one for one in path.parents[1].rglob("*") if one.is_file()]).read_bytes()


# What is done to a file, or in its place when it has been taken away.
CHANGES: tuple[Callable[[Path, random.Random], object], ...] = (
    lambda path, choose: flip(path, choose.randrange(path.stat().st_size)),
    lambda path, choose: os.truncate(path, choose.randrange(path.stat().st_size)),
    lambda path, choose: path.write_bytes(_overwritten(path.read_bytes(), choose)),
    lambda path, choose: path.write_bytes(_other(path, choose)),
)
IN_ITS_PLACE: tuple[Callable[[Path, random.Random], object], ...] = (
    lambda path, choose: os.mkfifo(path),
    lambda path, choose: path.symlink_to(choose.choice(["/dev/zero", "/etc/passwd", path.name, "nowhere", "."])),
    lambda path, choose: None,
)


def _goes_on_or_says_why(stopped: Path, place: Path, seed: int) -> str:
    """ "r" where it was refused, "w" where it went on with a word, "." where nothing was to be said: same bits."""
    folder = place / str(seed)
    shutil.copytree(stopped / "run", folder)
    choose = random.Random(seed)
    path = folder / "checkpoints" / "step-00000008" / choose.choice((*FILES, SUMS_NAME))
    hurt = choose.choice((*CHANGES, *IN_ITS_PLACE))
    if hurt in IN_ITS_PLACE:
        path.unlink()
    hurt(path, choose)
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("roibeam").addHandler(handler)
    try:
        go_on(folder)
    except (ValueError, OSError) as error:
        line = failure_of(error).line
        assert "step-00000008" in line and "\n" not in line, line
        return "r"
    finally:
        logging.getLogger("roibeam").removeHandler(handler)
    if not any("without a check" in line for line in said):
        last = "checkpoints/step-00000012"
        assert_equal_checkpoints(stopped / "whole" / last, folder / last)
    shutil.rmtree(folder)
    return "w" if said else "."


@pytest.mark.parametrize("seeds", [range(12), pytest.param(soak_seeds(300), marks=pytest.mark.soak, id="300")])
def test_mutated_checkpoints(stopped: Path, tmp_path: Path, seeds: range) -> None:
    """Any file of a checkpoint flipped, cut, overwritten, swapped, or a pipe, a link or nothing in its place."""

    def all_seeds(tell: Callable[[str], None]) -> None:
        torch.set_num_threads(1)
        for seed in seeds:
            with limited_time(20):
                mark = _goes_on_or_says_why(stopped, tmp_path, seed)
            tell(mark)

    marks = in_a_child(all_seeds, seeds)
    assert marks.count("r") > len(seeds) // 2, marks
