"""Options and arguments of commands. What an option means in all commands comes from the table of option_names.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from roibeam.pipelines.cli.surface.option_names import OPTIONS


def option(
    name: str,
    here: str = "",
    *,
    values: str = "",
    default: str | None = None,
    group: str | None = None,
    is_advanced: bool | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    """The option of that name.

    Args:
        here: what is special in this command: whole sentences, shown after the meaning.
        values: that the option takes in this command, shown behind the meaning and a colon.
        default: what happens without the option, where its default value does not show it.
        group: of `--help`; None for that of the table.
        is_advanced: shown by `--help-all` alone; None as the table says.
        callback: what the value becomes.
    Raises:
        KeyError: for a name that is not in the table.
    """
    known = OPTIONS[name]
    meaning = f"{known.meaning.rstrip('.')}: {values}." if values else known.meaning
    off = f"/--{known.off}" if known.off else ""
    declarations = [f"--{name}{off}", *([known.short] if known.short else [])]
    return typer.Option(
        *declarations,
        help=f"{meaning} {here}".strip(),
        metavar=known.value or None,
        min=known.least,
        max=known.most,
        hidden=known.is_advanced if is_advanced is None else is_advanced,
        callback=callback,
        show_default=True if default is None else default,
        rich_help_panel=known.group if group is None else group,
    )


def argument(name: str, what: str, *, callback: Callable[[Any], Any] | None = None) -> Any:
    """A positional argument, called `name`, in capitals, in usage, help and messages alike. See `option`."""
    return typer.Argument(metavar=name, help=what, show_default=False, callback=callback)
