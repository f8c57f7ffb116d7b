"""python tests/conformance [DIR] [--only GLOB] [--json]: reference arrays of the published codes against our code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where PYTHONSAFEPATH is set, no folder of a script is on the path

from harness.command import main

from roibeam.pipelines.cli.command_exit import run_to_the_end

run_to_the_end(lambda standalone_mode: main(sys.argv[1:]))
