"""The command `roibeam`: bad input gives one line and a non-zero exit. Its commands are in commands.py.

Little is imported here, so that a library that cannot be imported ends in that line too.
"""

import os
from typing import Any, NoReturn

from roibeam.pipelines.cli.command_exit import run_to_the_end


def main() -> NoReturn:
    """Entry point of the console script."""
    # Processes of roibeam or Beam must not import a user's model.py in the working directory in place of packages.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    run_to_the_end(_called)


def _called(**how: Any) -> Any:
    """Runs the command of the process's arguments, as typer's apps do."""
    from roibeam.pipelines.cli.commands import app

    return app(**how)
