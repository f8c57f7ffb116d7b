"""What commands keep on disk to go on with is hurt while they are stopped: it is made anew with a line."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import World
from forked_command import Ended, done, run
from hurt_files import Hurt, a_folder, a_pipe, flipped, written


def array(changed: Callable[[np.ndarray], np.ndarray]) -> Hurt:
    return lambda path: np.save(path, changed(np.load(path)))


ANY_FILE = {
    "empty": written(lambda data: b""),
    "cut": written(lambda data: data[: len(data) // 2]),
    "zeros": written(lambda data: data[:100] + bytes(len(data) - 100)),
    "longer": written(lambda data: data + b"\n"),
    "first bit": flipped(0),
    "middle bit": flipped(0.5),
    "last bit": flipped(1),
    "pipe": a_pipe,
    "folder": a_folder,
    "missing": Path.unlink,
}
JSON = {
    "{}": written(lambda data: b"{}"),
    "[1]": written(lambda data: b"[1]"),
    "without its sum": written(lambda data: b"{" + data.partition(b"\n")[2]),
}
ARRAY = {
    "NaN": array(lambda numbers: numbers * np.nan),
    "rows turned round": array(lambda numbers: numbers[::-1]),
    "half the rows": array(lambda numbers: numbers[: len(numbers) // 2]),
    "half the columns": array(lambda numbers: numbers[:, :1]),
    "float64": array(lambda numbers: numbers.astype(np.float64)),
}
PARTS = [
    (task, name, hurt)
    for task in ("labels", "retrieval")
    for name, kinds in (("part-00000.json", ANY_FILE | JSON), ("part-00000.npy", ANY_FILE | ARRAY))
    for hurt in kinds
]


def words_of(attacked: World, task: str, out: Path) -> list[object]:
    data = attacked / ("own" if task == "labels" else "world/flickr30k")
    more = ["--scores", out.with_name("scores.npz")] if task == "labels" else []
    return ["predict", attacked / task, "--store", attacked / "perfect", "--data", data, "--split", "test",
            "--device", "cpu", "--threads", 1, "--out", out, *more]  # fmt: skip


def killed_before_the_join() -> None:
    from roibeam.pipelines.finetuning.run.result_parts import ResultParts

    ResultParts.wait = lambda parts: os._exit(9)  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def stopped(attacked: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each task: whole/, with what a call that was not disturbed writes, and a stopped one's parts."""
    folders = {}
    for task in ("labels", "retrieval"):
        folder = tmp_path_factory.mktemp(task)
        (folder / "whole").mkdir()
        done(*words_of(attacked, task, folder / "whole" / "out.npy"))
        assert run(*words_of(attacked, task, folder / "out.npy"), before=killed_before_the_join).code == 9
        folders[task] = folder
    return folders


@pytest.mark.parametrize(("task", "name", "hurt"), PARTS)
def test_hurt_parts_of_predictions(
    attacked: World, stopped: dict[str, Path], tmp_path: Path, task: str, name: str, hurt: str
) -> None:
    (left,) = stopped[task].glob("out.npy.parts-*")
    folder = Path(shutil.copytree(left, tmp_path / left.name))
    (ANY_FILE | JSON | ARRAY)[hurt](folder / name)
    ended = run(*words_of(attacked, task, tmp_path / "out.npy"))
    assert ended.kind == "ok", ended
    assert "it is made anew" in ended.err or (name, hurt) == ("part-00000.json", "missing"), ended
    assert not list(tmp_path.glob("*parts*")) and not list(tmp_path.glob(".*"))
    whole = stopped[task] / "whole"
    assert (tmp_path / "out.npy").read_bytes() == (whole / "out.npy").read_bytes()
    if task == "labels":
        with np.load(tmp_path / "scores.npz") as got, np.load(whole / "scores.npz") as want:
            assert all((got[each] == want[each]).all() for each in ("ids", "labels", "scores"))


def test_whole_parts_are_kept(attacked: World, stopped: dict[str, Path], tmp_path: Path) -> None:
    """The damage above would be mended too by a command that kept nothing."""
    (left,) = stopped["retrieval"].glob("out.npy.parts-*")
    shutil.copytree(left, tmp_path / left.name)
    ended = done(*words_of(attacked, "retrieval", tmp_path / "out.npy"))
    assert "made anew" not in ended.err and "pairs in 1 part" not in ended.err


class Collected(NamedTuple):
    """A collection that is done, and what `collect run` is called with."""

    saved: Path
    out: Path
    words: list[object]
    digest: str

    def again(self, hurt: Hurt) -> Ended:
        """The same command, where the collection was not finished and `hurt` is called with its folder."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.saved, self.out)
        (self.out / "collection.json").unlink()
        hurt(self.out)
        return run(*self.words, seconds=120, gigabytes=None)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    pytest.importorskip("selectolax")
    folder = tmp_path_factory.mktemp("collected")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done("toyworld", folder / "world", "--num-images", 40, "--seed", 3, "--web", folder / "web", "--web-port", port,
         "--pages", 80)  # fmt: skip
    site, out = folder / "web" / "site", folder / "out"
    server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(site)]
    words: list[object] = ["collect", "run", site, out, "--allow-private", "127.0.0.0/8", "--no-nsfw",
                           "--no-robots-txt"]  # fmt: skip
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            done(*words)
            shutil.copytree(out, folder / "saved")
            digest = json.loads((out / "collection.json").read_text())["digest"]
            yield Collected(folder / "saved", out, words, digest)
        finally:
            serving.kill()


def of(pattern: str, hurt: Hurt, *, all_of_them: bool = False) -> Hurt:
    """`hurt` for the largest file of a pattern, or for all."""

    def hurt_some(out: Path) -> None:
        found = sorted(out.glob(pattern), key=lambda path: path.stat().st_size, reverse=True)
        for path in found if all_of_them else found[:1]:
            hurt(path)

    return hurt_some


def both(*each: Hurt) -> Hurt:
    return lambda out: [hurt(out) for hurt in each]


ANEW, FETCHED = "it is made anew", "other bytes than were fetched"
JOURNAL, IMAGES = "work/fetched/journal.jsonl", "work/fetched/images/*/*"
COLLECTIONS: dict[str, tuple[Hurt, str]] = {
    "nothing": (lambda out: None, ""),
    "a bit of each image": (of(IMAGES, flipped(0.6), all_of_them=True), FETCHED),
    "an image is another one": (of(IMAGES, lambda path: shutil.copy(max(path.parent.iterdir()), path)), FETCHED),
    "a bit of a photo": (of("photos/*/*", flipped(0.6)), ""),
    "a bit of a journal's line": (of(JOURNAL, flipped(0.6)), "1 line is damaged"),
    "a bit of a journal's first line": (of(JOURNAL, flipped(0)), "1 line is damaged, such as line 1"),
    "a journal that is cut": (of(JOURNAL, written(lambda data: data[:-30])), ""),
    "a journal's path that leads out": (
        of(JOURNAL, written(lambda data: data.replace(b'": "images', b'": "../images', 1))), "1 line is damaged"
    ),
    "a state that is cut": (of("work/state.json", written(lambda data: data[:-30])), ANEW),
    "a state that is a pipe": (of("work/state.json", a_pipe), ANEW),
    "counts": (of("work/pages/*.json", written(lambda data: data.replace(b'"taken"', b'"taker"'))), ANEW),
    "old pages": (of("work/pages/*.json", JSON["without its sum"]), ANEW),
    "a bit of the units of pictures": (of("work/picture_units/*.jsonl", flipped(0.5)), ""),
    "all at once": (both(of(JOURNAL, flipped(0.6)), of(IMAGES, flipped(0.6)), of("work/pages/*.jsonl", a_pipe)), ANEW),
} | {
    f"{step}: {name}": (of(f"work/{step}/*.jsonl", hurt), ANEW)
    for step in ("pages", "pictures") for name, hurt in ANY_FILE.items()
}  # fmt: skip


@pytest.mark.parametrize("case", COLLECTIONS)
def test_a_hurt_collection_gives_the_same_pairs(collected: Collected, case: str) -> None:
    hurt, line = COLLECTIONS[case]
    ended = collected.again(hurt)
    assert ended.kind == "ok" and line in ended.err, ended
    assert json.loads((collected.out / "collection.json").read_text())["digest"] == collected.digest
    for row in pq.read_table(collected.out / "pairs.parquet").to_pylist():
        assert hashlib.sha256((collected.out / row["image"]).read_bytes()).hexdigest() == row["sha256"]
    assert not [path for path in collected.out.rglob(".*") if path.name != ".lock"]


def test_leftovers_of_killed_collections_are_removed(collected: Collected) -> None:
    names = ["work/pages/.part-00000.99999999.tmp", "work/pictures/.part-00007.jsonl.99999999.0a1b2c3d.tmp",
             "work/picture_units/.unit-00000.jsonl.99999999.0a1b2c3d.tmp", "work/.images.tsv.99999999.tmp",
             ".pairs.parquet.99999999.tmp"]  # fmt: skip
    ended = collected.again(lambda out: [(out / name).touch() for name in names])
    assert ended.kind == "ok" and not [name for name in names if (collected.out / name).exists()], ended
