"""The command `roibeam`: bad input gives one line and a non-zero exit. Its commands are in commands.py.

Little is imported here: what all commands need takes 0.6 GB of address space, and who has less is told so before it.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from roibeam.pipelines.cli.command_end import run_to_the_end


def main() -> NoReturn:
    """Entry point of the console script."""
    # Processes that we or Beam start must not find a user's model.py in the working directory in place of our packages.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    run_to_the_end(_called)


def _called(**how: Any) -> Any:
    """Runs the command that the words of the process name, as typer's apps do."""
    from roibeam.pipelines.cli.commands import app

    return app(**how)
