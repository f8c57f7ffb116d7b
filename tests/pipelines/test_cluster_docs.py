"""Every command of docs/cluster.md is one that exists, with options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from apache_beam.options.pipeline_options import PipelineOptions

from roibeam.pipelines.cli.main import app

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
IMAGE = "roibeam/worker:0.1"


def commands() -> list[list[str]]:
    """The words after `roibeam` of each command line, those inside the image too."""
    found = []
    for line in TEXT.splitlines():
        words = shlex.split(line, posix=False) if line.startswith("    ") else []
        if words[:1] in (["roibeam"], [".venv/bin/roibeam"]):
            found.append(words[1:])
        elif words[:2] == ["docker", "run"]:
            found.append(words[words.index(IMAGE) + 1 :])
    return found


@pytest.fixture(scope="module")
def whole() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_and_its_options_exist(whole: Any, words: list[str]) -> None:
    ours, _, beam = (list(part) for part in _split(words))
    command = whole
    while hasattr(command, "commands"):
        command = command.commands[ours.pop(0)]
    flags = {flag: option for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    num_arguments = sum(option.param_type_name == "argument" for option in command.params)
    while ours:
        word = ours.pop(0)
        if not word.startswith("--"):
            num_arguments -= 1
        elif not flags[word].is_flag:
            ours.pop(0)
    assert num_arguments == 0
    for option in beam:
        name = option.partition("=")[0].removeprefix("--")
        assert name in PipelineOptions([option]).get_all_options(), option


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at : at + 1], words[at + 1 :]


def test_the_page_has_commands_of_every_runner() -> None:
    runners = {words[words.index("--runner") + 1] for words in commands() if "--runner" in words}
    assert runners == {"portable", "flink", "spark", "dataflow"}


def test_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    assert named and named <= targets
    for script in re.findall(r"python (bench/\S+\.py)", TEXT):
        assert (REPOSITORY / script).is_file()
    arguments = set(re.findall(r"^ARG (\w+)", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"--build-arg (\w+)=", TEXT)) <= arguments
