"""Hostile servers, lists of addresses, pipes and devices in place of files, links and names that leave a folder."""

import gzip
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import World
from forked_command import Ended, done, run
from odd_servers import serve_oddly

MOST_MEGABYTES = 1500  # of a command that reads a small store; most of it are torch and what tests have imported
READERS = (
    "store info {}", "store verify {}", "store verify {} --deep", "store ids {}", "store plan {} --ranks 2",
    "store dead-letters {}", "store repair {}", "progress {}", "store copy {} {out}", "store diff {} {own}",
    "store export {} {out}.tsv --format butd-tsv",
)  # fmt: skip
LIES = "endless declared bomb slow loop".split()
RANGE_LIES = ["other range", "short range", "long range"]
# A file of a store and a command that reads none of it.
NEEDS_NO = {("data", "store info {}"), ("shard", "store info {}"), ("data", "progress {}")}


def words(command: str, store: object, world: World, out: Path) -> list[str]:
    return [word.format(store, out=out / "out", own=world / "perfect") for word in command.split()]


def names(store: Path) -> dict[str, str]:
    """A file of each kind of a store, by what the cases call it."""
    return {"manifest": "manifest.json", "shard": "part-00000.json", "data": next(store.glob("part-00000.*.lmdb")).name}


@pytest.mark.parametrize("command", READERS)
def test_a_plain_server_gives_what_the_folder_gives(attacked: World, tmp_path: Path, command: str) -> None:
    with serve_oddly(attacked.folder, {".json": "no HEAD", "0.lmdb": "no size"}) as url:
        there = run(*words(command, f"{url}/store", attacked, tmp_path))
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        here = run(*words(command, attacked / "store", attacked, tmp_path))
    assert there.kind == here.kind and there.code == here.code and there.kind in ("ok", "line"), (there, here)


@pytest.mark.parametrize("command", ["store info {}", "store verify {}", "store copy {} {out}", "progress {}"])
@pytest.mark.parametrize(
    ("file", "lie"),
    [
        *((file, lie) for file in ("manifest", "shard") for lie in LIES),
        # One without end that begins rightly is read as far as its manifest says.
        *(("data", lie) for lie in [*LIES[1:], *RANGE_LIES]),
    ],
)
def test_a_lying_server_costs_a_line(attacked: World, tmp_path: Path, file: str, lie: str, command: str) -> None:
    name = names(attacked / "store")[file]
    with serve_oddly(attacked.folder, {f"/{name}": lie, f"/{name}?x": lie}) as url:
        ended = run(*words(command, f"{url}/store", attacked, tmp_path), before=hurry)
    assert ended.kind == "line" or (ended.kind == "ok" and (file, command) in NEEDS_NO), ended
    assert ended.megabytes < MOST_MEGABYTES and ended.seconds < 45, ended


def hurry() -> None:
    """Shortens the waits of a fork that reads at a server."""
    from roibeam.features.folders import object_folder, web_driver

    object_folder.WAIT_SECONDS, web_driver.STALL_SECONDS = (0.1, 0.1, 0.1), 2.0  # type: ignore[misc]


REFUSED_LINES = {
    "not a public address": "http://127.0.0.1:{port}/x.warc.gz http://localhost:{port}/x.warc.gz "
                            "http://[::ffff:127.0.0.1]:{port}/x.warc http://0x7f000001:{port}/x.warc",
    "cannot be read": "http://2130706433:{port}/x.warc",
    "expected a URL of http, https or s3": "zip://a.warc::http://127.0.0.1:{port}/x.warc file:///etc/x.warc "
                                           "simplecache::http://127.0.0.1:{port}/x.warc ftp://127.0.0.1:{port}/x.warc "
                                           "http://127.0.0.1:{port}/a::file:///etc/x.warc memory://x.warc",
    "not below the folder of the list": "/etc/x.warc ../../x.warc a/../../x.warc",
    "no file": "pipe.warc",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"), [(line, said) for said, lines in REFUSED_LINES.items() for line in lines.split()]
)
def test_a_line_of_a_list_of_pages_asks_no_machine_here(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in/pipe.warc")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        (tmp_path / "in/l.paths").write_text(line.format(port=server.getsockname()[1]) + "\n")
        run("collect", "run", tmp_path / "in/l.paths", tmp_path / "out", "--no-nsfw").refused(said)
        with pytest.raises(BlockingIOError):
            server.accept()


def bound_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo, "zero": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir, "socket": bound_socket,
    "loop": lambda path: path.symlink_to(path.name), "link to a pipe": lambda path: (
        os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe"),
    ),
}  # fmt: skip
TRAIN = "--system visualbert --model small --steps 2 --batch-size 4".split()
OPTIONS: dict[str, tuple[str, ...]] = {
    "pretrain --tokenizer": ("pretrain", "{out}", "--store", "{w}/store", "--captions", "{w}/captions", "--tokenizer"),
    "pretrain --captions": ("pretrain", "{out}", "--store", "{w}/store", "--tokenizer", "{w}/words", "--captions"),
    "pretrain --held-out": ("pretrain", "{out}", "--store", "{w}/store", "--tokenizer", "{w}/words", "--captions",
                            "{w}/captions", "--held-out", "list={odd}"),
    "extract --captions": ("extract", "{w}/photos", "{out}", "--detector", "toy", "--captions"),
    "extract --boxes": ("extract", "{w}/photos", "{out}", "--detector", "toy", "--boxes"),
    "extract --weights": ("extract", "{w}/photos", "{out}", "--weights"),
    "extract list": ("extract", "{odd}.csv", "{out}", "--detector", "toy"),
    "extract parquet": ("extract", "{odd}.parquet", "{out}", "--detector", "toy"),
    "extract tar": ("extract", "{odd}.tar", "{out}", "--detector", "toy"),
    "import tsv": ("store", "import", "{odd}.tsv", "{out}"),
    "import npz": ("store", "import", "{odd}.npz", "{out}"),
    "import h5": ("store", "import", "{odd}.h5", "{out}", "--format", "lxmert-h5"),
    "import lmdb": ("store", "import", "{odd}.lmdb", "{out}"),
    "import zip": ("store", "import", "{odd}.zip", "{out}"),
    "score labels": ("score", "labels", "{odd}", "--data", "{w}/own"),
    "score retrieval": ("score", "retrieval", "{odd}.npy", "--data", "{w}/world/flickr30k", "--split", "test"),
    "probe": ("probe", "{w}/run", "--store", "{w}/store", "--photo"),
    "leaks": ("leaks", "{w}/run", "--held-out", "list={odd}"),
    "collect": ("collect", "run", "{odd}.warc", "{out}", "--no-nsfw"),
    "download": ("download", "{odd}.tsv", "{out}"),
    "worker-pool": ("worker-pool", "--pool-token-file"),
    "convert": ("convert", "{odd}.pth", "{out}", "--to", "roibeam"),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_no_file_is_refused_by_each_option(attacked: World, tmp_path: Path, name: str, odd: str) -> None:
    place = {"w": tmp_path / "w", "out": tmp_path / "out", "odd": tmp_path / "odd"}
    command = [word.format(**place) for word in OPTIONS[name]]  # the option that takes a file comes last
    if not any("{odd}" in word for word in OPTIONS[name]):
        command.append(str(tmp_path / "odd"))
    (tmp_path / "w").symlink_to(attacked.folder)
    command = [
        word.replace("w/captions", "w/" + str(attacked.captions.relative_to(attacked.folder)))
        .replace("w/words", "w/world/vocab.txt").replace("w/photos", "w/world/coco/train2014") for word in command
    ]  # fmt: skip
    path = next(Path(word.removeprefix("list=")) for word in command if "/odd" in word)
    ODD[odd](path)
    ended = run(*command, *(TRAIN if command[0] == "pretrain" else []), seconds=30)
    assert ended.kind == "line" and ended.megabytes < 2 * MOST_MEGABYTES, ended


STORE_FILES = ("manifest.json", "part-00000.json", "data", "plan.json", "plan/part-00000.jsonl", "annotations.parquet",
               "dead_letters.parquet", "run_summary.json", ".lock", ".tmp-x/heartbeat.json")  # fmt: skip


@pytest.mark.parametrize(
    ("command", "is_finished"),
    [*((command, True) for command in READERS), *((f"{name} {{}}", False) for name in ("store verify", "progress"))],
)
@pytest.mark.parametrize("name", STORE_FILES)
def test_a_pipe_in_a_store_is_not_waited_for(
    attacked: World, tmp_path: Path, name: str, command: str, is_finished: bool
) -> None:
    store = attacked.copied("store", tmp_path)
    path = store / (names(store)["data"] if name == "data" else name)
    if not is_finished:
        (store / "manifest.json").unlink()
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    ended = run(*words(command, store, attacked, tmp_path), seconds=20)
    assert ended.kind in ("ok", "line"), ended


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.warc", b"WARC/1.0\r\n" * 300_000),
        ("a.warc", b"WARC/1.1\r\nA: b\r\n" * 200_000),
        ("a.warc", b"WARC/0.9\r\nA: b\r\n\r\n" * 200_000),
        ("a.warc", b"WARC/1.0\r\nContent-Length: -5\r\n\r\n" * 100_000),
        ("a.warc", b"WARC/1.0\r\nA: " + b"x" * 10**8),
        ("a.warc.gz", gzip.compress(b"") * 500_000),
        ("a.warc.gz", gzip.compress(b"WARC/1.0\r\n") * 100_000),
        ("a.warc.gz", b"\x1f\x8b\x08" * 2_000_000),
    ],
    ids=["lines", "heads", "0.9", "length", "header", "empty members", "bad members", "magic"],
)
def test_hostile_pages_take_seconds(tmp_path: Path, name: str, data: bytes) -> None:
    from roibeam.pipelines.collection.warc_pages import read_warc

    (tmp_path / name).write_bytes(data)
    begin = time.process_time()
    count = sum(1 for _ in read_warc(str(tmp_path / name), max_bytes=10**6))
    assert 1 <= count <= 20_002 and time.process_time() - begin < 40


def test_links_out_of_a_store_have_a_note_and_nothing_is_written_through_them(attacked: World, tmp_path: Path) -> None:
    store, own = attacked.copied("store", tmp_path), tmp_path / "own.txt"
    data = store / names(store)["data"]
    data.rename(tmp_path / "elsewhere.lmdb")
    data.symlink_to(tmp_path / "elsewhere.lmdb")
    assert "links lead out of this store, 1 of its files" in done("store", "verify", store).err
    own.write_text("mine")
    (tmp_path / "new/plan").mkdir(parents=True)
    for path in (tmp_path / "new/plan/part-00000.jsonl", tmp_path / "new/.lock"):
        path.symlink_to(own)
        extract = ("extract", attacked / "world/coco/train2014", tmp_path / "new", "--detector", "toy", "--threads", 1)
        ended: Ended = run(*extract)
        assert ended.kind == "line" and own.read_text() == "mine", ended
        path.unlink()


@pytest.mark.parametrize("kind", ["mmf-npy", "milvlg-npz", "vlbert-zip", "butd-tsv", "lxmert-h5"])
@pytest.mark.parametrize("image_id", ["../up", "/tmp/roibeam-abs", "a/../../up", "a\\..\\up", "C:\\up", "..", "n\0ul"])
def test_no_id_names_a_file_outside_an_export(tmp_path: Path, image_id: str, kind: str) -> None:
    from roibeam import StoreWriter

    with StoreWriter(tmp_path / "s", feature_space="own", classes=["cat"]) as writer:
        arrays = {"boxes": np.array([[0.0, 0, 5, 5]], np.float32), "features": np.ones((1, 8), np.float32)}
        more = {"class_ids": np.array([0]), "class_scores": np.array([0.5], np.float32)}
        try:
            writer.write(image_id, height=10, width=10, **arrays, **more)
        except ValueError:
            return
    (tmp_path / "out").mkdir()
    ended = run("store", "export", tmp_path / "s", tmp_path / "out/e", "--format", kind)
    assert ended.kind in ("ok", "line"), ended
    assert set(tmp_path.iterdir()) == {tmp_path / "s", tmp_path / "out"}
    assert not list(Path("/tmp").glob("roibeam-abs*"))
    assert all((tmp_path / "out").resolve() in path.resolve().parents for path in (tmp_path / "out").rglob("*"))
