"""The command line in the test's own process: imports, networks and compiled code are there already."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest


def run_roibeam(*arguments: object) -> int:
    """The exit code of `roibeam ARGUMENTS`, for fixtures of a module. Tests have the fixture `roibeam`, which also
    gives what was said."""
    from roibeam.pipelines.cli import main as cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["roibeam", *map(str, arguments)])
        patch.setattr(cli, "app", _commands())
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return int(stopped.value.code or 0)


@functools.cache
def _commands() -> Callable[..., Any]:
    """What typer makes of the app at each call of it, from the parameters of all commands: a tenth of a second."""
    from typer.main import get_command

    from roibeam.pipelines.cli.main import app

    return get_command(app)
