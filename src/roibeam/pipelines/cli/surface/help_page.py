"""Pages of `--help` as text: usage, what the command does, examples, arguments, options in groups."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from roibeam.pipelines.cli.surface.option_names import COMMAND_GROUPS, GROUPS
from roibeam.pipelines.common.console.printable_streams import Unchanged

_WIDEST, _NARROWEST = 100, 40
_COLUMN = 28  # of the names, with the space before and after them
_EXAMPLES = "Examples:"
_NO_BREAK = "\x00"  # in place of a space
# Of options that typer adds, in our words.
_OTHERS = {
    "--install-completion": "Complete commands and options by the Tab key, in this shell.",
    "--show-completion": "Print what --install-completion would set up.",
}


def command_page(command: Any, context: Any, *, everything: bool) -> str:
    """The page of one command.

    Args:
        everything: also shows options that few need.
    """
    text, examples = _parts(command.help)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    shown = [each for each in options if everything or not each.hidden or each.required]
    names = " ".join([called(context), "[OPTIONS]", *argument_names(command)])
    page = [*_usage(names), "", *_paragraphs(text), *_examples(examples)]
    page += _section("Arguments", [(_name_of(each), _sentence(each)) for each in arguments])
    for group in sorted({_group(each) for each in shown}, key=_place):
        page += _section(group, [(_name_of(each), _sentence(each)) for each in shown if _group(each) == group])
    help_row = [("-h, --help", "Show this page.")]
    if left := len(options) - len(shown):
        help_row.append(("--help-all", f"Show {left} more options, which few need."))
    page += ["", *_rows(help_row)] if not shown else _rows(help_row, before="")
    return Unchanged("\n".join(page))


def group_page(group: Any, context: Any) -> str:
    """The page of a command that has commands below it: all of them, in groups."""
    text, examples = _parts(group.help)
    page = [*_usage(f"{called(context)} COMMAND [OPTIONS]"), "", *_paragraphs(text), *_examples(examples)]
    rows: dict[str, list[tuple[str, str]]] = {}
    for words, command, panel in _commands(group):
        rows.setdefault(panel, []).append((words, _first_sentence(command)))
    for panel in sorted(rows, key=lambda panel: _place(panel, COMMAND_GROUPS)):
        page += _section(panel, rows[panel])
    options = [each for each in group.params if each.param_type_name == "option"]
    page += _section(
        "Options", [*((_name_of(each), _sentence(each)) for each in options), ("-h, --help", "Show this page.")]
    )
    page += ["", f"`{called(context)} COMMAND --help` shows a command with its options and examples."]
    return Unchanged("\n".join(page))


def called(context: Any) -> str:
    """The words that call a command, whatever file the program was started from."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["roibeam", *words])


def argument_names(command: Any) -> list[str]:
    """The arguments of a command, as its usage shows them: "SOURCE...", "OUT", "[RUN]"."""
    return [_in_usage(each) for each in command.params if each.param_type_name == "argument"]


def examples_of(command: Any) -> list[str]:
    """The examples on the page of a command, a command line each."""
    return _parts(command.help)[1]


def _commands(group: Any) -> Iterable[tuple[str, Any, str]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        panel = command.rich_help_panel or "Commands"
        if hasattr(command, "commands"):
            yield from ((f"{name} {words}", below, panel) for words, below, _ in _commands(command))
        else:
            yield name, command, panel


def _parts(text: str | None) -> tuple[str, list[str]]:
    """What is said, and the examples."""
    said, _, below = (text or "").partition(f"{_EXAMPLES}\n")
    return said.strip(), [line.strip() for line in below.splitlines() if line.strip()]


def _first_sentence(command: Any) -> str:
    return " ".join(_parts(command.help)[0].partition("\n\n")[0].split())


def _group(option: Any) -> str:
    return str(option.rich_help_panel or "Options")


def _place(group: str, groups: Sequence[str] = GROUPS) -> int:
    return groups.index(group) if group in groups else len(groups)


def _in_usage(argument: Any) -> str:
    name = f"{argument.metavar}..." if argument.nargs == -1 else str(argument.metavar)
    return name if argument.required else f"[{name}]"


def _name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _in_usage(parameter).strip("[]")
    names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--"))
    value = "" if parameter.is_flag or not parameter.metavar else f" {parameter.metavar}"
    return ", ".join(names) + value


def _sentence(parameter: Any) -> str:
    """What is said of a parameter, and its default."""
    said = [_OTHERS.get(parameter.opts[0], parameter.help or "")]
    if parameter.param_type_name == "argument":
        return said[0]
    if parameter.required:
        said.append("[required]")
    elif isinstance(parameter.show_default, str):
        said.append(f"[default: {parameter.show_default}]")
    elif parameter.default not in (None, (), []) and not parameter.is_flag:
        said.append(f"[default: {_shown(parameter.default)}]")
    return " ".join(said)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


# Lines


def _width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def _usage(names: str) -> list[str]:
    lines = _wrapped(names, _width() - 7)
    return [_bold("Usage: ") + lines[0], *(" " * 7 + line for line in lines[1:])]


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n") if text else []:
        lines += [*([""] if lines else []), *_wrapped(" ".join(paragraph.split()), _width())]
    return lines


def _examples(lines: Sequence[str]) -> list[str]:
    return ["", _bold("Examples"), *(f"  {line}" for line in lines)] if lines else []


def _section(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["", _bold(title), *_rows(rows)] if rows else []


def _rows(rows: Sequence[tuple[str, str]], before: str | None = None) -> list[str]:
    """Names, and beside them, or below where they are long, what is said of them."""
    lines = [] if before is None else [before]
    column = min(_COLUMN, 4 + max(len(name) for name, _ in rows))
    for name, said in rows:
        beside = _wrapped(said, _width() - column) or [""]
        first = f"  {name}"
        if len(first) + 2 > column:
            lines.append(first)
        else:
            lines.append(f"{first:<{column}}{beside.pop(0)}".rstrip())
        lines += [" " * column + line for line in beside]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text. A name with hyphens stays whole, and so does a short default."""
    kept = re.sub(r"\[[^]]{,24}\]", lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(kept, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _bold(text: str) -> str:
    styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"\x1b[1m{text}\x1b[0m" if styled else text
