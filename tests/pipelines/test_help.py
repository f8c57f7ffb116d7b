"""What the command line looks like: one meaning for each option, pages of `--help`, near names, completion."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.cli.help_pages import HelpedCommand, command_page, examples_of, group_page
from roibeam.pipelines.cli.option_names import COMMAND_GROUPS, GROUPS, OPTIONS, option

ROOT = get_command(app)


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, each in command.commands.items():
        yield from leaves(each, *path, name)


LEAVES = dict(leaves(ROOT))


def page(path: str, *, everything: bool = False) -> str:
    command = LEAVES[path]
    return command_page(command, _context(path, command), everything=everything)


def _context(path: str, command: Any, words: list[str] | None = None) -> Any:
    context = None
    for name in ("roibeam", *path.split())[:-1] if path else ():
        context = ROOT.context_class(ROOT, info_name=name, parent=context)
    return command.make_context(
        path.split()[-1] if path else "roibeam", words or [], parent=context, resilient_parsing=words is None
    )


# One name, one meaning


def differences(command: Any) -> list[str]:
    """What of a command's options is not as the table says."""
    kinds = typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    wrong = []
    for each in command.params:
        if each.param_type_name != "option":
            continue
        name = each.opts[0].removeprefix("--")
        if name not in OPTIONS:
            wrong.append(f"--{name} is not in the table")
            continue
        known = OPTIONS[name]
        flag_of = [f"--{known.off}"] if known.off else []
        found = {
            "kind": _kinds(kinds[each.name]) == {known.kind},
            "value": (each.metavar or "") == known.value,
            "range": (each.min, each.max) == (known.least, known.most),
            "meaning": each.help.startswith(known.meaning.rstrip(".")),
            "names": each.opts == [f"--{name}", *([known.short] if known.short else [])],
            "second form": each.secondary_opts in ([], flag_of),
            "flag": bool(each.is_flag) == (known.kind is bool),
        }
        wrong += [f"--{name}: {what}" for what, fits in found.items() if not fits]
    return wrong


def _kinds(annotation: Any) -> set[type]:
    """The types of one value: of `Annotated[list[str] | None, ...]` that is str."""
    if annotation is NoneType:
        return set()
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        return _kinds(parts[0])
    return {kind for part in parts for kind in _kinds(part)} if parts else {annotation}


def test_an_option_means_the_same_in_every_command() -> None:
    assert {path: wrong for path, command in LEAVES.items() if (wrong := differences(command))} == {}


def test_what_differs_from_the_table_is_noticed() -> None:
    """Guards the test above: options that were not made from the table, and a type that is not the table's."""

    def own_meaning(
        device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="Name of the GPU.")],
    ) -> None:
        return None

    def own_name(image_root: Annotated[str, typer.Option()] = "") -> None:
        return None

    def other_kind(steps: Annotated[float, option("steps")]) -> None:
        return None

    def other_range(steps: Annotated[int, typer.Option("--steps", help=OPTIONS["steps"].meaning, metavar="N")]) -> None:
        return None

    def second_form(deep: Annotated[bool, typer.Option("--deep/--no-deep", help=OPTIONS["deep"].meaning)]) -> None:
        return None

    assert [differences(_command(each)) for each in (own_meaning, own_name, other_kind, other_range, second_form)] == [
        ["--device: meaning"],
        ["--image-root is not in the table"],
        ["--steps: kind"],
        ["--steps: range"],
        ["--deep: second form"],
    ]


def _command(function: Callable[..., None]) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(cls=HelpedCommand)(function)
    return get_command(alone)


def test_the_table_has_no_name_that_nobody_uses() -> None:
    used = {each.opts[0].removeprefix("--") for command in LEAVES.values() for each in command.params if each.opts}
    assert set(OPTIONS) - used == set()
    meanings = [each.meaning for each in OPTIONS.values()]
    assert len(set(meanings)) == len(meanings)
    assert [meaning for meaning in meanings if not re.fullmatch(r"\S[^\n]+[.]", meaning)] == []


# The pages


@pytest.mark.parametrize("width", [80, 100])
def test_pages_fit_the_terminal_and_speak_no_python(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    pages = {
        f"{path} {everything}": page(path, everything=everything) for path in LEAVES for everything in (False, True)
    }
    for path in ("", "store", "detector"):
        group = ROOT if not path else typing.cast(Any, ROOT).commands[path]
        pages[path] = group_page(group, _context(path, group))
    wide = {path: line for path, text in pages.items() for line in text.splitlines() if len(line) > width}
    assert wide == {}
    python = re.compile(r"<\w+|\{|list\[|--no-json|default: None|default: False|[^)]\.\.\.$|…", re.MULTILINE)
    below = {path: text.partition("\n")[2] for path, text in pages.items()}  # the line of usage may end in "STORE..."
    assert {path: found[0] for path, text in below.items() if (found := python.search(text))} == {}


def test_the_first_page_has_what_is_common_and_the_second_one_all() -> None:
    for path, command in LEAVES.items():
        first, second = page(path), page(path, everything=True)
        options = [each for each in command.params if each.param_type_name == "option"]
        assert all(each.opts[0] in second for each in options), path
        assert all(each.opts[0] in first for each in options if each.required), path
        assert ("--help-all" in first) == any(each.hidden for each in options), path
    assert len(page("extract").splitlines()) <= 50


def test_groups_stand_in_one_order() -> None:
    for path, command in LEAVES.items():
        titles = [line for line in page(path, everything=True).splitlines() if line in GROUPS]
        assert titles == [each for each in GROUPS if each in titles], path
        groups = {each.rich_help_panel for each in command.params if each.param_type_name == "option"}
        assert groups <= set(GROUPS), path
    text = group_page(ROOT, _context("", ROOT))
    assert [line for line in text.splitlines() if line in COMMAND_GROUPS] == list(COMMAND_GROUPS)
    assert all(f"  {path} " in text for path in LEAVES)


def test_capitals_name_an_argument_of_the_command() -> None:
    names = {
        str(each.metavar) for command in LEAVES.values() for each in command.params if not each.opts[0].startswith("-")
    }
    for path, command in LEAVES.items():
        own = {word for each in command.params for word in re.findall(r"[A-Z_]+", each.metavar or "")}
        said = set(
            re.findall(r"\b[A-Z_]{2,}\b", " ".join([command.help, *(each.help or "" for each in command.params)]))
        )
        assert said & names <= own, path


def test_examples_are_of_the_command_and_parse() -> None:
    for path, command in LEAVES.items():
        lines = [line[line.index("roibeam ") :] for line in examples_of(command)]  # torchrun may stand before it
        commands = [shlex.split(line) for line in lines]
        assert any(" ".join(words).startswith(f"roibeam {path}") for words in commands), path
        for words in commands:
            known = next(
                each for each in sorted(LEAVES, key=len, reverse=True) if words[1:][: len(each.split())] == each.split()
            )
            _context(known, LEAVES[known], words[1 + len(known.split()) :])


def test_without_a_command_the_help_is_shown_and_that_is_no_error(roibeam: Callable[..., Any]) -> None:
    for words in ((), ("store",), ("detector",)):
        bare, asked = roibeam(*words), roibeam(*words, "-h")
        assert bare.code == 0 and bare.out == asked.out == roibeam(*words, "--help").out and not bare.err
    everything = roibeam("store", "verify", "--help-all")
    assert everything.code == 0 and everything.out == page("store verify", everything=True) + "\n"


# Wrong names


@pytest.mark.parametrize(
    "words, near",
    [
        (("inspect-batch",), "did you mean `roibeam pretrain RUN --inspect-batch 8`?"),
        (("verify", "store"), "did you mean `roibeam store verify`?"),
        (("extrakt", "a", "b"), "did you mean `roibeam extract`?"),
        (("store", "verfy"), "did you mean `roibeam store verify`?"),
        (("extract", "a", "b", "--images", "c"), "did you mean --photos?"),
        (("extract", "a", "b", "--presett", "c"), "did you mean --preset"),
        (("pretrain", "a", "--selection", "c"), "there is no option --selection"),
    ],
)
def test_a_wrong_name_is_answered_with_near_ones(
    roibeam: Callable[..., Any], words: tuple[str, ...], near: str
) -> None:
    done = roibeam(*words)
    assert done.code == 2 and near in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    "words, told",
    [
        (("look", "a.jpg", "b.jpg"), "'b.jpg' is one argument too many: roibeam look takes PHOTO; "),
        (("probe", "run", "a.jpg", "a", "red", "[MASK]"), "'red', '[MASK]' are arguments too many: roibeam probe "),
        (("demo", "a", "b", "c"), "'b', 'c' are arguments too many: roibeam demo takes OUT; "),
    ],
)
def test_words_too_many_are_named_and_quotes_advised(
    roibeam: Callable[..., Any], words: tuple[str, ...], told: str
) -> None:
    done = roibeam(*words)
    assert done.code == 2 and told in done.err and "needs quotes" in done.err and done.err.count("\n") == 1


def test_a_home_folder_that_the_shell_left_is_found(
    roibeam: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell does not expand `--out=~/a`, which wrote a folder named ~; deleting that may lose more."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f"{tmp_path}/home/no: no feature store here" in roibeam("store", "info", "~/no").err
    assert f"{tmp_path}/home/b" in roibeam("leaks", tmp_path, "--held-out=list=~/b").err
    assert f"{tmp_path}/home/c" in roibeam("leaks", tmp_path, "--held-out", "list=~/c").err
    assert "a~/no: no feature store here" in roibeam("store", "info", "a~/no").err


def test_other_words_lead_to_options_and_commands_that_exist() -> None:
    from roibeam.pipelines.cli.help_pages import OTHER_COMMANDS, OTHER_WORDS

    assert set(OTHER_WORDS.values()) <= set(OPTIONS) and not set(OTHER_COMMANDS) & set(LEAVES)
    assert all(any(words.startswith(path) for path in (*LEAVES, "--help")) for words in OTHER_COMMANDS.values())


def test_a_shell_completes_names_without_numpy(tmp_path: Path) -> None:
    """It loads the options of all commands, as every help page and every command does before its own work."""
    script = (
        "import atexit, sys; from roibeam.pipelines.cli.main import main; "
        "atexit.register(lambda: print([name for name in ('numpy', 'pyarrow', 'torch') if name in sys.modules])); "
        "sys.argv = ['roibeam']; main()"
    )
    environment = {
        **os.environ, "_ROIBEAM_COMPLETE": "complete_bash", "COMP_WORDS": "roibeam extract --phot", "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--photos", "[]"]
