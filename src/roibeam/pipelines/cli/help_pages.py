"""Help pages of commands and groups, and hints to a near name where an option or command is unknown.

A page is text: usage, what the command does, examples, arguments, options in groups. Pages of typer's own need rich,
whose import takes longer than all of this, and have no second page for options that few need.
"""

import inspect
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from roibeam.features.folders.durable_files import with_place
from roibeam.messages import near_names
from roibeam.pipelines.common.console.printable_streams import Unchanged
from roibeam.pipelines.common.console.request_options import GROUPS

# Groups of commands, in their order in `roibeam --help`.
FEATURES = "Features"
STORES = "Stores"
TRAIN = "Training"
LOOKING = "Looking and evaluating"
SETUP = "Setting up"
DEVELOPERS = "For developers"
COMMAND_GROUPS = (FEATURES, STORES, TRAIN, LOOKING, SETUP, DEVELOPERS)
_WIDEST, _NARROWEST = 100, 40
_COLUMN = 28  # of the names, with the space before and after them
_EXAMPLES = "Examples:"
ARGUMENTS = "Arguments"
_NO_BREAK = "\x00"  # in place of a space
# Help of the options that typer adds.
_OTHERS = {
    "--install-completion": "Complete commands and options by the Tab key, in this shell.",
    "--show-completion": "Print what --install-completion would set up.",
}


def command_page(command: Any, context: Any, *, everything: bool) -> str:
    """Page of one command.

    Args:
        everything: also lists options that few need.
    """
    text, examples = parts_of(command.help)
    names = " ".join([called(context), "[OPTIONS]", *argument_names(command)])
    page = [*_usage(names), "", *_paragraphs(text), *_examples(examples)]
    visible = 0
    for title, rows in sections_of(command, everything=everything):
        page += _section(title, rows)
        visible += title != ARGUMENTS and len(rows)
    help_row = [("-h, --help", "Show this page.")]
    if left := sum(each.param_type_name == "option" for each in command.params) - visible:
        help_row.append(("--help-all", f"Show {left} more options, which few need."))
    page += ["", *_rows(help_row)] if not visible else _rows(help_row, before="")
    return Unchanged("\n".join(page))


def sections_of(command: Any, *, everything: bool) -> list[tuple[str, list[tuple[str, str]]]]:
    """Arguments and groups of options of a command, each with (name, help with the default) of its members."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    visible = [each for each in options if everything or not each.hidden or each.required]
    found = [(ARGUMENTS, arguments)] if arguments else []
    for group in sorted({_group(each) for each in visible}, key=_place):
        found.append((group, sorted((each for each in visible if _group(each) == group), key=lambda each: each.hidden)))
    return [(title, [(_name_of(each), _sentence(each)) for each in members]) for title, members in found]


def group_page(group: Any, context: Any) -> str:
    """Page of a command that has commands below it: all of them, in groups."""
    text, examples = parts_of(group.help)
    page = [*_usage(f"{called(context)} COMMAND [OPTIONS]"), "", *_paragraphs(text), *_examples(examples)]
    rows: dict[str, list[tuple[str, str]]] = {}
    for words, command, panel in commands_of(group):
        rows.setdefault(panel, []).append((words, " ".join(parts_of(command.help)[0].partition("\n\n")[0].split())))
    for panel in sorted(rows, key=lambda panel: _place(panel, COMMAND_GROUPS)):
        page += _section(panel, rows[panel])
    options = [each for each in group.params if each.param_type_name == "option"]
    page += _section(
        "Options", [*((_name_of(each), _sentence(each)) for each in options), ("-h, --help", "Show this page.")]
    )
    page += ["", f"`{called(context)} COMMAND --help` shows a command with its options and examples."]
    return Unchanged("\n".join(page))


def called(context: Any) -> str:
    """Words that call a command, whatever file the program was started from."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["roibeam", *words])


def argument_names(command: Any) -> list[str]:
    """Arguments of a command, as in its usage: "SOURCE...", "OUT", "[RUN]"."""
    return [_in_usage(each) for each in command.params if each.param_type_name == "argument"]


def commands_of(group: Any) -> Iterable[tuple[str, Any, str]]:
    """Commands of a group and of groups below it, each as its words, itself and its group in the help."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        panel = command.rich_help_panel or "Commands"
        if hasattr(command, "commands"):
            yield from ((f"{name} {words}", below, panel) for words, below, _ in commands_of(command))
        else:
            yield name, command, panel


def parts_of(text: str | None) -> tuple[str, list[str]]:
    """Splits a help text into prose and examples."""
    prose, _, below = (text or "").partition(f"{_EXAMPLES}\n")
    return prose.strip(), [line.strip() for line in below.splitlines() if line.strip()]


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
    """Help of a parameter, and its default."""
    parts = [_OTHERS.get(parameter.opts[0], parameter.help or "")]
    if parameter.param_type_name == "argument":
        return parts[0]
    if parameter.required:
        parts.append("[required]")
    elif isinstance(parameter.show_default, str):
        parts.append(f"[default: {parameter.show_default}]")
    elif parameter.default not in (None, (), []) and not parameter.is_flag:
        parts.append(f"[default: {_formatted(parameter.default)}]")
    return " ".join(parts)


def _formatted(value: Any) -> str:
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
    """Names, with their texts beside them, or below long names."""
    lines = [] if before is None else [before]
    column = min(_COLUMN, 4 + max(len(name) for name, _ in rows))
    for name, text in rows:
        beside = _wrapped(text, _width() - column) or [""]
        first = f"  {name}"
        if len(first) + 2 > column:
            lines.append(first)
        else:
            lines.append(f"{first:<{column}}{beside.pop(0)}".rstrip())
        lines += [" " * column + line for line in beside]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Wraps a text. A name with hyphens stays whole, and so does a short default."""
    kept = re.sub(r"\[[^]]{,24}\]", lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(kept, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _bold(text: str) -> str:
    styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"\x1b[1m{text}\x1b[0m" if styled else text


_LONGEST_PATH = 1000  # characters; a text of an option is longer
HELP_NAMES = ["-h", "--help"]

# Option names of other tools, and their names here.
OTHER_WORDS = {
    "images": "photos", "image": "photo", "image-root": "photos", "image-dir": "photos", "data-dir": "photos",
    "mode": "precision", "fp16": "precision", "bf16": "precision", "amp": "precision", "gpu": "device",
    "gpus": "device", "output": "out", "output-dir": "out", "lr": "learning-rate", "bs": "batch-size",
    "per-device-train-batch-size": "batch-size", "max-steps": "steps", "num-train-steps": "steps", "epochs": "steps",
    "resume-from-checkpoint": "resume", "num-workers": "workers", "regions": "max-regions", "stage-to": "cache-dir",
    "weight": "store-weight", "validation": "validation-captions", "num": "num-images", "task": "task-token",
    "top": "max-regions", "top-k": "max-regions",
}  # fmt: skip
OTHER_COMMANDS = {
    "inspect-batch": "pretrain RUN --inspect-batch 8", "inspect": "pretrain RUN --inspect-batch 8",
    "train": "pretrain", "fit": "pretrain", "eval": "evaluate", "test": "evaluate", "detect": "look",
    "draw": "look", "visualize": "look", "features": "extract", "run": "extract",
    "status": "progress", "help": "--help", "merge": "store copy", "split": "store copy",
}  # fmt: skip


# A home folder that a shell leaves as it is: --out=~/store, --held-out list=~/ids.txt, '~/photos'.
_HOME = re.compile(r"((?:[^\s=/]+=)*)~(?=/|$)")


def _is_missing(param: Any, words: Sequence[str]) -> bool:
    """Whether a required option is not among the words of a command line."""
    given = {word.partition("=")[0] for word in words}
    return param.param_type_name == "option" and param.required and given.isdisjoint(param.opts)


class HelpedCommand(TyperCommand):
    """A command with roibeam's page of help, and `--help-all`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        own = [_with_home(word) for word in args[:end]]
        args = own + args[end:]  # a copy: the parser empties its list
        if "--help-all" in own and not ctx.resilient_parsing:
            typer.echo(command_page(self, ctx, everything=True))
            ctx.exit()
        ctx.allow_extra_args = True  # surplus arguments are reported below
        try:
            too_many = super().parse_args(ctx, args)
        except Exception as error:
            # Its class depends on the version of typer.
            if wrong := _wrong_number(self, getattr(error, "param", None), own):
                return cast(list[str], ctx.fail(wrong))
            if getattr(getattr(error, "param", None), "nargs", 1) == -1:
                # The parser calls the first one missing, whichever it is.
                names = " ".join(
                    f"{each.metavar}{'...' * (each.nargs == -1)}"
                    for each in self.params
                    if each.param_type_name == "argument"
                )
                return cast(list[str], ctx.fail(f"missing argument: expected {names}"))
            missing = [each.opts[0] for each in self.params if _is_missing(each, own)]
            if type(error).__name__ == "MissingParameter" and missing:  # all at once; the parser names the first
                return cast(list[str], ctx.fail(f"missing: {' and '.join(missing)}"))
            if not hasattr(error, "option_name"):
                raise
            name = str(error.option_name)
            if not hasattr(error, "possibilities"):
                known = next((each for each in self.params if name in each.opts), None)
                what = getattr(known, "help", "").replace("\n", " ")
                return cast(list[str], ctx.fail(f"{name} needs a value behind it: {what}"))
            return cast(list[str], ctx.fail(_no_such_option(self, name) + self.where_else(name)))
        if too_many and not ctx.resilient_parsing:
            ctx.fail(_too_many(self, ctx, too_many))
        return too_many

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if named := with_place(error, _places(ctx)):
                raise named from error
            raise

    def where_else(self, name: str) -> str:
        """Hint for an option that this command does not have: where it belongs."""
        return ""

    def get_help(self, ctx: Any) -> str:
        return command_page(self, ctx, everything=False)


class HelpedGroup(TyperGroup):
    """Commands below a command. Called alone, it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(_no_such_command(self, ctx, args[0]))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Any) -> str:
        return group_page(self, ctx)


def _places(ctx: Any) -> list[Path]:
    """Paths that a command may write: its arguments and options, outputs first, and the scratch folder."""
    given = sorted(ctx.params.items(), key=lambda each: each[0] != "out")
    paths = [Path(value) for _, value in given if isinstance(value, str | Path) and "://" not in str(value)]
    return [*(path for path in paths if len(str(path)) < _LONGEST_PATH), Path(tempfile.gettempdir())]


def _with_home(word: str) -> str:
    found = _HOME.match(word)
    return word if found is None else found[1] + os.path.expanduser("~") + word[found.end() :]


def _too_many(command: Any, context: Any, words: list[str]) -> str:
    taken = " ".join(argument_names(command)) or "no argument"
    many = f"{words[0]!r} is one argument" if len(words) == 1 else f"{', '.join(map(repr, words))} are arguments"
    return f"{many} too many: {called(context)} takes {taken}; a text or name with spaces needs quotes around it"


def _wrong_number(command: Any, parameter: Any, args: list[str]) -> str:
    """Error in the number of an option, in roibeam's words instead of the parser's; "" for other errors."""
    name = next((each for each in getattr(parameter, "opts", ()) if each.startswith("--")), "")
    # As declared: where the parser keeps type and range depends on the version of typer.
    hint = inspect.unwrap(command.callback).__annotations__.get(getattr(parameter, "name", ""))
    number = next((each for each in (int, float) if each in _kinds(hint)), None)
    if not name or number is None:
        return ""
    words = get_args(hint)[1]
    values = [after for each, after in pairwise(args) if each == name]
    values += [each.partition("=")[2] for each in args if each.startswith(f"{name}=")]
    least, most = words.min, words.max
    what = "a whole number" if number is int else "a number"
    if least is not None:
        what += f", {least:g} or more" if most is None else f" from {least:g} to {most:g}"
    wrong = next((value for value in values if not _is_number(value, number, least, most)), None)
    return "" if wrong is None else f"{name} {wrong!r}: expected {what}"


def _kinds(hint: Any) -> set[Any]:
    """The types of one value: of `Annotated[list[int] | None, ...]` that is int."""
    parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return {kind for part in parts for kind in _kinds(part)} if parts else {hint}


def _is_number(text: str, number: type[float], least: float | None, most: float | None) -> bool:
    try:
        value = number(text)
    except ValueError:
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def _no_such_option(command: Any, name: str) -> str:
    known = [each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)]
    known = [each for each in known if each.startswith("--")]
    meant = {each: each for each in known} | {
        f"--{word}": f"--{here}" for word, here in OTHER_WORDS.items() if f"--{here}" in known
    }
    near = [name] if name in meant else near_names(name, meant)
    return f"there is no option {name}{_did_you_mean(list(dict.fromkeys(meant[each] for each in near)))}"


def _no_such_command(group: Any, context: Any, name: str) -> str:
    """Error with near names, of this group, and of groups below."""
    before = called(context)
    below = [
        f"{before} {other} {each}"
        for other, command in group.commands.items()
        for each in getattr(command, "commands", ())
        if each == name
    ]
    if context.parent is None and name in OTHER_COMMANDS:
        near = [f"{before} {OTHER_COMMANDS[name]}"]
    else:
        near = below or [f"{before} {each}" for each in near_names(name, group.commands)]
    return f"there is no command `{before} {name}`{_did_you_mean([f'`{each}`' for each in near])}"


def _did_you_mean(near: list[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""
