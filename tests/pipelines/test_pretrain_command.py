"""`roibeam pretrain` as a user runs it: on a store that `extract` wrote, and on everything that is not one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.toyworld.draw import draw_samples

Cli = Callable[..., Any]
TINY_MODEL = ("--steps", 4, "--batch-size", 4, "--set", "model.hidden_size=32", "--set", "model.num_hidden_layers=1",
              "--set", "model.num_attention_heads=2", "--set", "model.intermediate_size=64")  # fmt: skip


@pytest.fixture
def store(roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> tuple[Path, Path]:
    """A store of eight pictures, and their captions."""
    captions = draw_samples(tmp_path / "samples", count=8)
    assert roibeam("extract", tmp_path / "samples" / "images", tmp_path / "store", *tiny_network).code == 0
    return tmp_path / "store", captions


def test_a_run_and_its_continuation(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    done = roibeam("pretrain", tmp_path / "run", *options)
    assert done.code == 0, done.err
    assert "8 of 8 captions joined (8 by id)" in done.out and "4 steps" in done.out
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == [1, 2, 3, 4]
    again = roibeam("pretrain", tmp_path / "run", *options, "--no-resume")
    assert again.code == 1 and "already holds a run; resume it, or choose another folder" in again.err
    assert roibeam("pretrain", tmp_path / "run", *options, "--resume", "--json").code == 0


def test_the_same_command_goes_on_and_another_is_refused(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    chosen = ("evaluate_every=2", "best_by=masked_words", "best_is=lowest", "average_rate=0.9")
    settings = ("--json", *(part for each in chosen for part in ("--set", f"train.{each}")))
    first = roibeam("pretrain", tmp_path / "run", *options, *settings)
    assert first.code == 0, first.err
    facts = json.loads(first.out.splitlines()[-1])
    assert (tmp_path / "run" / "report.html").is_file() and Path(facts["best"]).is_dir()
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4]
    # What is printed in the end was measured on the average, as the last of the evaluations was.
    assert all(lines[-1][name] == value for name, value in facts["evaluation"].items())
    again = roibeam("pretrain", tmp_path / "run", *options, *settings)
    assert json.loads(again.out.splitlines()[-1])["evaluation"] == facts["evaluation"]
    other = roibeam("pretrain", tmp_path / "run", *options, *settings, "--learning-rate", "0.5")
    assert "belongs to another configuration (train.learning_rate: 0.0001 -> 0.5)" in one_line(other)
    vocabulary = tmp_path / "run" / "tokenizer"
    same = roibeam("pretrain", tmp_path / "run", *options, *settings, "--tokenizer", vocabulary)
    assert same.code == 0 and "goes on with its own tokenizer" in same.err


@pytest.mark.faults
def test_a_command_told_to_stop_leaves_a_checkpoint_and_goes_on(store: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [Path(sys.executable).parent / "roibeam", "pretrain", run, "--store", store[0], "--captions", store[1]]
    command += [*TINY_MODEL, "--steps", 100_000, "--device", "cpu", "--threads", 1]
    seen = 0
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        deadline = time.monotonic() + 60
        while len(steps_of(run)) < seen + 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code and "Traceback" not in errors, errors
        steps = steps_of(run)
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > seen
        said = f"stopped by {number.name} after step {len(steps)} of 100000, with the checkpoint"
        assert errors.splitlines()[-1].startswith(f"roibeam: {said} {run / 'checkpoints'}")
        seen = len(steps)


def steps_of(run: Path) -> list[int]:
    lines = (run / "log.jsonl").read_text().splitlines(keepends=True) if (run / "log.jsonl").exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def test_a_store_at_a_url_trains_alike(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    places = {"here": [store[0]], "staged": [store[0].as_uri(), "--stage-to", tmp_path / "disk", "--stage-gb", "1"]}
    lines = {}
    for name, place in places.items():
        done = roibeam("pretrain", tmp_path / name, "--captions", store[1], *TINY_MODEL, "--store", *place)
        assert done.code == 0, done.err
        lines[name] = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
    assert [each["loss"] for each in lines["here"]] == [each["loss"] for each in lines["staged"]]
    assert len(list((tmp_path / "disk").glob("part-*.lmdb"))) == 1


def one_line(result: Any) -> str:
    assert result.code != 0 and "Traceback" not in result.err, result.err
    return str(result.err.splitlines()[-1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "model.hidden_sise=8"], "hidden_sise"),
        (["--set", "model.hidden_size=abc"], "model settings"),
        (["--set", "model.hidden_size=33"], "model settings"),
        (["--set", "train.betas=[0.9]"], "betas must be two numbers"),
        (["--set", "train.stepz=3"], "near: steps"),
        (["--set", "sampling.word_probability=7"], "word_probability must be in 0..1"),
        (["--model", "huge"], "choose one of small, base"),
        (["--tokenizer", "nowhere"], "neither a vocab.txt"),
        (["--device", "tpu"], "device must be auto or cpu"),
        (["--captions", "missing.json"], "no such caption file"),
        (["--store", "{tmp}"], "no feature store here"),
        (["--store", "gs://bucket/store"], "need --stage-to FOLDER"),
        (["--stage-gb", "1"], "need --stage-to FOLDER"),
    ],
)
def test_user_errors_are_one_clear_line(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path, options: list[str], words: str
) -> None:
    extra = [option.format(tmp=tmp_path) for option in options]
    given = {"--store": store[0], "--captions": store[1]}
    base = [part for name, value in given.items() if name not in extra for part in (name, value)]
    line = one_line(roibeam("pretrain", tmp_path / "run", *base, *TINY_MODEL, *extra))
    assert words in line
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_folders_with_other_things_are_left_alone(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    before = sorted(path.name for path in store[0].iterdir())
    assert "choose" in one_line(roibeam("pretrain", store[0], *options))
    assert sorted(path.name for path in store[0].iterdir()) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    assert "not empty and no run of ours" in one_line(roibeam("pretrain", tmp_path / "other", *options))
    assert "is a file" in one_line(roibeam("pretrain", tmp_path / "other" / "thesis.tex", *options))


def test_captions_of_other_images_are_refused_with_an_example(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "c.tsv").write_text("a dog\tdogs/rex.jpg\n")
    done = roibeam("pretrain", tmp_path / "run", "--store", store[0], "--captions", tmp_path / "c.tsv", *TINY_MODEL)
    line = one_line(done)
    assert "dogs/rex" in line and "sample_0000" in line


def test_a_damaged_checkpoint_is_one_clear_line(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    assert roibeam("pretrain", tmp_path / "run", *options).code == 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-00000004")
    for name in ("optimizer.safetensors", "state.json"):
        kept = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(kept[: len(kept) // 2])
        assert "is damaged or incomplete" in one_line(roibeam("pretrain", tmp_path / "run", *options, "--resume"))
        (checkpoint / name).write_bytes(kept)
    shutil.rmtree(checkpoint)
    assert roibeam("pretrain", tmp_path / "run", *options, "--resume").code == 0  # from the one before
