"""Runs commands one after another in a process that has imported nothing heavy, and says what each printed and which
heavy packages it brought in: `light_commands.py commands.json`, a list of lists of words.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from in_process import run_roibeam

# Not pandas: pyarrow imports it where it makes an array of a list, if it is installed.
HEAVY = ("torch", "torchvision", "apache_beam", "transformers", "accelerate", "datasets", "polars", "matplotlib")


def main() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on a machine with a GPU, too, it is certain that there is none
    there: set[str] = set()
    for words in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_roibeam(*words)
        heavy = [name for name in HEAVY if name in sys.modules and name not in there]
        there.update(heavy)
        print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue(), "heavy": heavy}))


if __name__ == "__main__":
    main()
