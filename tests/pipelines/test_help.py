"""What the command line looks like: one meaning for each option, pages of `--help`, near names, completion."""

import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from tiny_commands import Cli
from typer.main import get_command

from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.cli.help_pages import COMMAND_GROUPS, HelpedCommand, command_page, group_page, parts_of
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.common.console.request_options import GROUPS, Json, argument, option, renamed

ROOT = get_command(app)


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, each in command.commands.items():
        yield from leaves(each, *path, name)


LEAVES = dict(leaves(ROOT))
REQUESTS = [*"extract pretrain finetune predict evaluate attention probe".split(), "detector train", "collect run"]


def page(path: str, *, everything: bool = False) -> str:
    command = LEAVES[path]
    return command_page(command, _context(path, command), everything=everything)


def _context(path: str, command: Any, words: list[str] | None = None) -> Any:
    context = None
    *parents, name = ("roibeam", *path.split())
    for each in parents:
        context = ROOT.context_class(ROOT, info_name=each, parent=context)
    return command.make_context(name, words or [], parent=context, resilient_parsing=words is None)


# One name, one kind of value


def declared(command: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Options of a command: kind of the value, its name in the help, range, and the names of the option itself."""
    hints = inspect.unwrap(command.callback).__annotations__
    for each in command.params:
        if each.param_type_name == "option":
            words = typing.get_args(hints[each.name])[1]
            kinds = _kinds(typing.get_args(hints[each.name])[0])
            yield each.opts[0], (kinds, each.metavar, words.min, words.max, each.opts, each.is_flag)


def _kinds(annotation: Any) -> str:
    """The types of one value, a text apart: of `list[int] | None` that is int."""
    return " ".join(sorted({name for name in ("int", "float", "bool") if re.search(rf"\b{name}\b", str(annotation))}))


def test_an_option_takes_the_same_value_in_every_command() -> None:
    """Guards what no type checker sees: two requests that declare one name for two kinds of value."""
    found: dict[str, dict[str, set[str]]] = {}
    for path, command in LEAVES.items():
        for name, facts in declared(command):
            found.setdefault(name, {}).setdefault(str(facts), set()).add(path)
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
    assert len(found) > 100


def test_an_option_is_a_whole_sentence_and_called_as_its_field() -> None:
    for path, command in LEAVES.items():
        for each in command.params:
            assert re.fullmatch(r"[A-Z`0-9t][^\n]+[.]", each.help or "."), (path, each.name)
            if each.param_type_name == "option" and path in REQUESTS:
                assert each.opts[0] == f"--{each.name.strip('_').replace('_', '-')}", path


@dataclass(frozen=True)
class Part:
    many: Annotated[tuple[int, ...], option("Some numbers.", "N", min=1)] = ()
    switch: Annotated[bool | None, option("On, off or neither.")] = None
    pair: Annotated[tuple[int, ...] | None, option("Numbers.", "N,N", convert=lambda text: text and (1, 2))] = None


@renamed(old="name_")
@dataclass(frozen=True)
class Request:
    place: Annotated[Path, argument("PLACE", "A place.")]
    name_: Annotated[str, option("A name.", "NAME")] = "none"
    part: Part = Part()
    unseen: str = "as it is"


def test_a_dataclass_in_a_request_gives_its_fields() -> None:
    """Kinds of fields that a request may have, as a user types them and as the command receives them."""

    seen: list[Request] = []

    def run(request: Request, json: Json = False) -> None:
        seen.append(request)

    alone = typer.Typer(add_completion=False)
    alone.command(cls=HelpedCommand)(request_command(run))
    call = typing.cast(Any, get_command(alone)).main
    for words in ("here", "here --name b --many 1 --many 2 --no-switch --pair 1,2 --json"):
        call(words.split(), standalone_mode=False)
    assert seen == [Request(Path("here")), Request(Path("here"), "b", Part((1, 2), False, (1, 2)))]
    with pytest.raises(TypeError, match=r"^Request: old is called name_ now$"):
        Request(Path("here"), old="b")  # type: ignore[call-arg]
    with pytest.raises(Exception, match=r"--many .0.: expected a whole number, 1 or more"):
        call(["here", "--many", "0"], standalone_mode=False)


# The pages


@pytest.mark.parametrize("width", [80, 100])
def test_pages_fit_the_terminal_and_speak_no_python(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    asked = itertools.product(LEAVES, (False, True))
    pages = {f"{path} {everything}": page(path, everything=everything) for path, everything in asked}
    for path in ("", "store", "detector"):
        group = ROOT if not path else typing.cast(Any, ROOT).commands[path]
        pages[path] = group_page(group, _context(path, group))
    wide = {path: line for path, text in pages.items() for line in text.splitlines() if len(line) > width}
    assert wide == {}
    python = re.compile(r"<\w+|\{|list\[|--no-json|default: None|default: False|[^)]\.\.\.$|…", re.MULTILINE)
    below = {path: text.partition("\n")[2] for path, text in pages.items()}  # the line of usage may end in "STORE..."
    assert {path: found[0] for path, text in below.items() if (found := python.search(text))} == {}


# Options that a first run of the docs has, or a message of one names.
FIRST_RUN = {
    *("--set", "--seed", "--warmup-steps", "--threads", "--min-match", "--held-out", "--caption-column", "--id-prefix"),
    *("--max-failures", "--tokenizer", "--gpus", "--images"),
}


def test_the_first_page_has_what_is_common_and_the_second_one_all() -> None:
    for path, command in LEAVES.items():
        first, second = page(path), page(path, everything=True)
        options = [each for each in command.params if each.param_type_name == "option"]
        assert all(each.opts[0] in second for each in options), path
        assert all(each.opts[0] in first for each in options if each.required or each.opts[0] in FIRST_RUN), path
        assert ("--help-all" in first) == any(each.hidden for each in options), path
    assert len(page("extract").splitlines()) <= 80


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
    parameters = [each for command in LEAVES.values() for each in command.params]
    names = {str(each.metavar) for each in parameters if not each.opts[0].startswith("-")}
    for path, command in LEAVES.items():
        own = {word for each in command.params for word in re.findall(r"[A-Z_]+", each.metavar or "")}
        text = " ".join([command.help, *(each.help or "" for each in command.params)])
        assert set(re.findall(r"\b[A-Z_]{2,}\b", text)) & names <= own, path


def test_examples_are_of_the_command_and_parse() -> None:
    longest_first = sorted(LEAVES, key=len, reverse=True)
    for path, command in LEAVES.items():
        lines = [line[line.index("roibeam ") :] for line in parts_of(command.help)[1]]  # torchrun may stand before it
        assert any(line.startswith(f"roibeam {path}") for line in lines), path
        for _, *words in map(shlex.split, lines):
            known = next(each for each in longest_first if words[: len(each.split())] == each.split())
            _context(known, LEAVES[known], words[len(known.split()) :])


def test_without_a_command_the_help_is_shown_and_that_is_no_error(roibeam: Cli) -> None:
    for words in ((), ("store",), ("detector",)):
        bare, asked = roibeam(*words), roibeam(*words, "-h")
        assert bare.code == 0 and bare.out == asked.out == roibeam(*words, "--help").out and not bare.err
    everything = roibeam("store", "verify", "--help-all")
    assert everything.code == 0 and everything.out == page("store verify", everything=True) + "\n"


# Wrong names


@pytest.mark.parametrize(
    "words, told",
    [
        ("inspect-batch", "did you mean `roibeam pretrain RUN --inspect-batch 8`?"),
        ("verify store", "did you mean `roibeam store verify`?"),
        ("extrakt a b", "did you mean `roibeam extract`?"),
        ("store verfy", "did you mean `roibeam store verify`?"),
        ("extract a b --image-dir c", "did you mean --photos?"),
        ("extract a b --presett c", "did you mean --preset"),
        ("pretrain a --selection c", "there is no option --selection"),
        ("look a.jpg b.jpg", "'b.jpg' is one argument too many: roibeam look takes PHOTO; "),
        ("probe run a.jpg a red [MASK]", "'red', '[MASK]' are arguments too many: roibeam probe "),
        ("demo a b c", "'b', 'c' are arguments too many: roibeam demo takes OUT; "),
    ],
)
def test_wrong_names_get_near_ones_and_words_too_many_get_quotes(roibeam: Cli, words: str, told: str) -> None:
    done = roibeam(*words.split())
    assert done.code == 2 and told in done.err and done.err.count("\n") == 1
    assert ("needs quotes" in done.err) == ("too many" in told)


def test_a_tilde_that_the_shell_left_is_found(roibeam: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand `--out=~/a`, which wrote a folder named ~; deleting that may lose more."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f"{tmp_path}/home/no: no feature store here" in roibeam("store", "info", "~/no").err
    assert f"{tmp_path}/home/b" in roibeam("leaks", tmp_path, "--held-out=list=~/b").err
    assert f"{tmp_path}/home/c" in roibeam("leaks", tmp_path, "--held-out", "list=~/c").err
    assert "a~/no: no feature store here" in roibeam("store", "info", "a~/no").err


def test_other_words_lead_to_options_and_commands_that_exist() -> None:
    from roibeam.pipelines.cli.help_pages import OTHER_COMMANDS, OTHER_WORDS

    names = {each.opts[0][2:] for command in LEAVES.values() for each in command.params}
    assert set(OTHER_WORDS.values()) <= names and not set(OTHER_COMMANDS) & set(LEAVES)
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
