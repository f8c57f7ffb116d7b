"""Files on the way of one job, floors and arrows of the house: `python bench/house_measures.py [--extract] [--rooms]`.

`--extract`: files of the package in which a function is called, in any thread, while `roibeam extract` takes 12 drawn
photos to a store with the toy detector in one process. Bodies of modules and of classes do not count.

`--rooms`: floors (rooms on the longest chain) and arrows between rooms. A room is a folder of the package, or one in
pipelines/. Imports at run time count, those inside functions too; those for a type checker do not. Files outside of
all rooms do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from graphlib import TopologicalSorter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "roibeam"
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests" / "helpers")]  # measured is this checkout

from house import Module, modules  # noqa: E402

# In a process of its own: what drawing calls and remembers is not extraction's.
DRAW = "import sys, pathlib; from roibeam.pipelines.toyworld.rendering import draw_samples as draw; \
draw(pathlib.Path(sys.argv[1]), count=12)"


def files_of_extract() -> list[str]:
    """Paths below the package, sorted."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:  # functions have it, bodies of modules do not
            called.add(frame.f_code.co_filename)

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
        subprocess.run([sys.executable, "-c", DRAW, f"{folder}/drawn"], env=environment, check=True)
        words = ["extract", f"{folder}/drawn/images", f"{folder}/store", "--detector", "toy", "--threads", "1"]
        before, sys.argv = sys.argv, ["roibeam", *words]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            from roibeam.pipelines.cli.main import main

            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            sys.argv = before
    return sorted(str(path.relative_to(PACKAGE)) for path in map(Path, called) if path.is_relative_to(PACKAGE))


def arrows_between_rooms(house: dict[str, Module]) -> dict[str, set[str]]:
    """Room -> the other rooms that it imports."""
    arrows: dict[str, set[str]] = {}
    for name, module in house.items():
        for other in module.imports:
            user, used = room_of(name), room_of(other)
            if user and used and user != used:
                arrows.setdefault(user, set()).add(used)
                arrows.setdefault(used, set())
    return arrows


def room_of(module: str) -> str:
    """Name of a module's room, such as `features` or `pipelines/data`; empty for one that lies in none."""
    folders = module.split(".")[1:-1]
    if folders[:1] == ["pipelines"]:
        return "/".join(folders[:2]) if len(folders) > 1 else ""
    return folders[0] if folders else ""


def floors(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by height: those that import no other room, those that import only such, and so on."""
    heights: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():  # a circle has no floors: it raises CycleError
        heights[room] = 1 + max((heights[used] for used in arrows[room]), default=-1)
    return [sorted(room for room in heights if heights[room] == height) for height in range(max(heights.values()) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extract", action="store_true", help="only the files that run in the smallest extract")
    parser.add_argument("--rooms", action="store_true", help="only floors and arrows")
    options = parser.parse_args()
    if options.extract or not options.rooms:
        files = files_of_extract()
        print(f"{len(files)} files run in the smallest extract", *files, sep="\n  ")
    if options.rooms or not options.extract:
        arrows = arrows_between_rooms(modules())
        by_floor, number = floors(arrows), sum(map(len, arrows.values()))
        print(f"{len(by_floor)} floors, {number} arrows between {len(arrows)} rooms; lowest first, with arrows down:")
        for floor, rooms in enumerate(by_floor, 1):
            print(f"  {floor}: " + "; ".join(f"{room} ({len(arrows[room])})" for room in rooms))


if __name__ == "__main__":
    main()
