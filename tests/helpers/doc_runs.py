"""The blocks of a page, run as a reader runs them: in order, in one folder that is fresh or a made one."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from doc_pages import RUN, Block, Page

LONGEST_SECONDS = 900  # a block that hangs
REPOSITORY = Path(__file__).parents[2]
REAL_MODELS, REAL_DATA = REPOSITORY / "build" / "real-models", REPOSITORY.parent / "shared" / "data"
# What `<!-- in: NAME -->` puts into a page's folder, made once by these commands, and the set-up that they go on from.
GOES_ON_FROM = {"toy store": "toy photos"}
MADE = {
    "real photos": f"""
cp -r {REAL_DATA}/images photos
rm -r photos/awkward photos/index.json
mkdir build
ln -s {REAL_MODELS} build/
ln -s {REPOSITORY}/examples .
python - {REAL_DATA}/coco/captions_train2014*.json <<'END'
import csv, json, sys

with open("captions.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["image", "caption"])
    for told in (json.load(open(name)) for name in sys.argv[1:]):
        names = {{each["id"]: each["file_name"] for each in told["images"]}}
        table.writerows((names[each["image_id"]], each["caption"]) for each in told["annotations"])
END
""",
    "toy photos": """
roibeam toyworld world --num-images 300
cp -r world/coco/train2014 photos
cp world/coco/annotations/captions_train2014.json captions.json
cp world/vocab.txt .
cp "$(ls world/coco/val2014/*.jpg | head -1)" photo.jpg
""",
    "toy store": """
roibeam extract photos store --detector toy --captions captions.json
roibeam pretrain run --store store --captions captions.json --tokenizer vocab.txt --system visualbert --steps 20 \\
    --batch-size 16
""",
}
# Runs snippet after snippet in one namespace, and says through a pipe how each ended.
_SNIPPETS = """
import json, os, sys, traceback
said = os.fdopen(int(sys.argv[1]), "w")
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(*json.loads(line), "exec"), names)
    except BaseException:
        traceback.print_exc()
        break
    sys.stdout.flush()
    said.write("done\\n")
    said.flush()
"""


def environment(commands: Path | None = None) -> dict[str, str]:
    """Of a reader without a GPU and without a network, whose environment is active.

    Args:
        commands: a folder whose `roibeam` stands before that of the environment.
    """
    folders = [*([commands] if commands else []), Path(sys.executable).parent, os.environ["PATH"]]
    return {
        **os.environ, "PATH": os.pathsep.join(map(str, folders)), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "PYTHONSAFEPATH": "",
    }  # fmt: skip


def run_page(
    page: Page, folder: Path, *, commands: Path | None = None, with_soak: bool = False, one_step: bool = False
) -> None:
    """Runs what is not marked, with `with_soak` also what takes long.

    Args:
        commands: see `environment`.
        one_step: trainings take one step in place of their own number.
    Raises:
        AssertionError: for the first block that does not end as it should, with the end of what it said.
    """
    left_out = ("not run",) if with_soak else ("not run", "soak")
    has_python = any(block.language == "python" for block in page.blocks)
    with _python(folder) if has_python else nullcontext(_run_shell) as run_python:
        for block in page.blocks:
            if block.language not in RUN or block.mark.startswith(left_out):
                continue
            if one_step:
                text = re.sub(
                    r"--(warmup-)?steps \d+", lambda found: f"--{found[1] or ''}steps {int(not found[1])}", block.text
                )
                block = replace(block, text=text)
            ended_well, said = run_python(block) if block.language == "python" else _run_shell(block, folder, commands)
            wanted = block.mark != "fails"
            how = "failed" if wanted else "did not fail"
            assert ended_well == wanted, f"line {block.line}: this block {how}\n{block.text}\n{said[-3000:]}"


def _run_shell(block: Block, folder: Path, commands: Path | None = None) -> tuple[bool, str]:
    done = subprocess.run(
        ["bash", "-e", "-c", block.shell],
        cwd=folder, env=environment(commands), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=LONGEST_SECONDS, text=True, errors="replace",
    )  # fmt: skip
    return done.returncode == 0, done.stdout


@contextmanager
def _python(folder: Path) -> Iterator[Callable[[Block], tuple[bool, str]]]:
    """Runs snippets in one Python process; each call gives whether one ended well, and all that was said so far."""
    log = folder.with_name(f"{folder.name}.python.log")
    reading, writing = os.pipe()
    with os.fdopen(reading) as answers, log.open("w") as said, subprocess.Popen(
        [sys.executable, "-c", _SNIPPETS, str(writing)], cwd=folder, env=environment(), pass_fds=[writing], text=True,
        stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        os.close(writing)
        assert process.stdin is not None

        def run(block: Block) -> tuple[bool, str]:
            process.stdin.write(json.dumps([block.text, f"snippet of line {block.line}"]) + "\n")
            process.stdin.flush()
            return answers.readline() == "done\n", log.read_text("utf-8", errors="replace")

        try:
            yield run
            process.stdin.close()
            process.wait(30)
        finally:
            process.kill()


def made_folder(setup: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a set-up, made once for all tests and all processes of pytest. To copy, not to write in."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (base / "made-for-pages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(base, setup)


def _made(base: Path, setup: str) -> Path:
    folder = base / f"made-{setup.replace(' ', '-')}"
    if folder.is_dir():
        return folder
    working = folder.with_name(f"{folder.name}-working")
    if working.exists():
        shutil.rmtree(working)  # of a test that failed here
    if setup in GOES_ON_FROM:
        shutil.copytree(_made(base, GOES_ON_FROM[setup]), working)
    else:
        working.mkdir()
    ended_well, said = _run_shell(Block(0, "bash", MADE[setup], ""), working)
    assert ended_well, f"the set-up {setup!r} failed\n{said[-3000:]}"
    return working.rename(folder)
