"""The command line in the test's own process: imports, networks and compiled code are there already."""

from __future__ import annotations

import sys

import pytest


def run_roibeam(*arguments: object) -> int:
    """The exit code of `roibeam ARGUMENTS`, for fixtures of a module. Tests have the fixture `roibeam`, which also
    gives what was said."""
    from roibeam.pipelines.cli.main import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["roibeam", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return int(stopped.value.code or 0)
