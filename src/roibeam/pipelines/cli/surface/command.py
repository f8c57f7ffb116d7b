"""Commands and groups of commands that show our own pages of help, and say what a wrong name was near to."""

from __future__ import annotations

import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from roibeam.features.folders.full_disk import with_place
from roibeam.near_names import near_names
from roibeam.pipelines.cli.surface.help_page import argument_names, called, command_page, group_page
from roibeam.pipelines.cli.surface.option_names import OPTIONS, OptionName

_LONGEST_PATH = 1000  # characters; a text of an option is longer
HELP_NAMES = ["-h", "--help"]

# What people type who know other tools, and what it is called here.
OTHER_WORDS = {
    "images": "photos", "image": "photo", "image-root": "photos", "image-dir": "photos", "data-dir": "photos",
    "mode": "precision", "fp16": "precision", "bf16": "precision", "amp": "precision", "gpu": "device",
    "gpus": "device", "output": "out", "output-dir": "out", "lr": "learning-rate", "bs": "batch-size",
    "per-device-train-batch-size": "batch-size", "max-steps": "steps", "num-train-steps": "steps", "epochs": "steps",
    "resume-from-checkpoint": "resume", "num-workers": "workers", "regions": "max-regions", "stage-to": "cache-dir",
    "weight": "store-weight", "validation": "validation-captions", "num": "num-images", "task": "task-token",
}  # fmt: skip
OTHER_COMMANDS = {
    "inspect-batch": "pretrain RUN --inspect-batch 8", "inspect": "pretrain RUN --inspect-batch 8",
    "train": "pretrain", "fit": "pretrain", "eval": "evaluate", "test": "evaluate", "detect": "look",
    "draw": "look", "visualize": "look", "features": "extract", "run": "extract",
    "status": "progress", "help": "--help", "merge": "store copy", "split": "store copy",
}  # fmt: skip


# A home folder that a shell leaves as it is: --out=~/store, --held-out list=~/ids.txt, '~/photos'.
_HOME = re.compile(r"((?:[^\s=/]+=)*)~(?=/|$)")


class HelpedCommand(TyperCommand):
    """A command with our page of help, and `--help-all`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        own = [_with_home(word) for word in args[:end]]
        args = own + args[end:]  # a copy: the parser empties its list
        if "--help-all" in own and not ctx.resilient_parsing:
            typer.echo(command_page(self, ctx, everything=True))
            ctx.exit()
        ctx.allow_extra_args = True  # what is too much is said below, in our words
        try:
            too_many = super().parse_args(ctx, args)
        except Exception as error:
            # Which class it is of, depends on the version of typer.
            if wrong := _wrong_number(getattr(error, "param", None), own):
                return cast(list[str], ctx.fail(wrong))
            if not hasattr(error, "option_name") or not hasattr(error, "possibilities"):
                raise
            name = str(error.option_name)
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
        """What else to say of an option that this command does not have: where it belongs."""
        return ""

    def get_help(self, ctx: Any) -> str:
        return command_page(self, ctx, everything=False)


class HelpedGroup(TyperGroup):
    """Commands below a command. Called alone, it shows its help."""

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
    """Where a command may write: its arguments and options that are paths, outputs first, and the scratch folder."""
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


def _wrong_number(parameter: Any, args: list[str]) -> str:
    """What is wrong with the number of an option, which the parser says in words of its own; "" for other errors."""
    name = next((each for each in getattr(parameter, "opts", ()) if each.startswith("--")), "")
    known = OPTIONS.get(name.removeprefix("--"))
    if known is None or known.kind not in (int, float):
        return ""
    values = [after for each, after in pairwise(args) if each == name]
    values += [each.partition("=")[2] for each in args if each.startswith(f"{name}=")]
    what = "a whole number" if known.kind is int else "a number"
    if known.least is not None:
        what += f", {known.least:g} or more" if known.most is None else f" from {known.least:g} to {known.most:g}"
    wrong = next((value for value in values if not _is_number(value, known)), None)
    return "" if wrong is None else f"{name} {wrong!r}: expected {what}"


def _is_number(text: str, known: OptionName) -> bool:
    try:
        number = known.kind(text)
    except ValueError:
        return False
    least, most = known.least, known.most
    return (least is None or number >= least) and (most is None or number <= most)


def _no_such_option(command: Any, name: str) -> str:
    known = [each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)]
    known = [each for each in known if each.startswith("--")]
    meant = {each: each for each in known} | {
        f"--{word}": f"--{ours}" for word, ours in OTHER_WORDS.items() if f"--{ours}" in known
    }
    near = [name] if name in meant else near_names(name, meant)
    return f"there is no option {name}{_did_you_mean(list(dict.fromkeys(meant[each] for each in near)))}"


def _no_such_command(group: Any, context: Any, name: str) -> str:
    """Names near to it, of this group, and of groups below."""
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
