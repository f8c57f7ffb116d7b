"""Text of strangers on the terminal, full disks in every writer, ids that begin with U+FEFF, JSON and photos."""

import hashlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import VISUALBERT, World
from forked_command import Ended, done, run
from hurt_files import edited

from roibeam import FeatureStore, StoreWriter
from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.folders.local_folder import SCRATCH_PREFIX

HOSTILE = "\x1b]0;title\x07\x1b[2J\u202e\u200b\u2028\x85x\nroibeam: all is well"
LEAKS = ("\x1b", "\x07", "\u202e", "\u200b", "\u2028", "\x85", "\nroibeam: all is well")
DEEP, DIGITS = "[" * 300_000, "9" * 5000


def beating(store: Path, **said: object) -> None:
    """As if a run were at work there, whose heartbeat says so."""
    (store / "manifest.json").unlink()
    (store / "part-00002.json").unlink()
    beat = dict(shard=2, records=1, started_at=time.time() - 9, beaten_at=time.time(), **said)
    (folder := store / f"{SCRATCH_PREFIX}part-00002.aaaa").mkdir()
    (folder / "heartbeat.json").write_text(json.dumps(beat))
    (store / ".lock").touch()


def named(store: Path) -> None:
    def change(manifest: Any) -> None:
        classes = manifest["vocabulary"]["classes"]
        manifest["vocabulary"]["classes"] = [f"{HOSTILE}{number}" for number in range(len(classes))]
        manifest["config"] = {"detector": HOSTILE, "source": {"location": HOSTILE}}
        manifest["fingerprint"]["numerics"] = {HOSTILE: HOSTILE}

    edited(change)(store / "manifest.json")


def with_letters(store: Path) -> None:
    part = store / "part-00000.json"
    letter = dict.fromkeys(("image_id", "location", "stage", "reason", "detail"), HOSTILE)
    edited(lambda shard: shard.update(dead_letters=[letter]))(part)
    digest = hashlib.sha256(part.read_bytes()).hexdigest()

    def change(manifest: Any) -> None:
        manifest["num_dead_letters"] = 1
        next(each for each in manifest["shards"] if each["manifest"] == part.name)["manifest_sha256"] = digest

    edited(change)(store / "manifest.json")


HURTS: dict[str, Callable[[Path], object]] = {
    "beat": lambda store: beating(store, host=HOSTILE, stage=HOSTILE, attempt=HOSTILE, failures={HOSTILE: 3}),
    "error": lambda store: edited(lambda summary: summary.update(status="failed", error=HOSTILE))(
        store / "run_summary.json"
    ),
    "names": named,
    "letters": with_letters,
}
LOOKS = ("progress", "store info", "store verify", "store dead-letters", "store show", "store ids", "store repair")


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("hurt", HURTS)
def test_a_strangers_store_shows_text(
    attacked: World, tmp_path: Path, hurt: str, look: str, as_json: tuple[str, ...]
) -> None:
    HURTS[hurt](attacked.copied("store", tmp_path))
    shown(run(*look.split(), tmp_path / "store", *as_json))


def shown(ended: Ended) -> None:
    assert ended.kind in ("ok", "line"), ended
    assert not [leak for leak in LEAKS if leak in ended.out + ended.err], ended


@pytest.mark.parametrize("words", [
    "X", "store info X", "extract X out", "convert X.safetensors out --to roibeam", "store ids --X",
    "predict X --store X --data X --out o", "score labels X --data X", "look X --detector toy", "recipes X",
])  # fmt: skip
def test_names_on_the_command_line_come_back_as_text(words: str) -> None:
    shown(run(*(word.replace("X", HOSTILE) for word in words.split())))


def test_a_tensors_name_is_text(tmp_path: Path) -> None:
    header = json.dumps({HOSTILE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    shown(run("convert", tmp_path / "a.safetensors", tmp_path / "out", "--to", "roibeam"))


def suffix(name: str) -> str:
    return next(iter(format_named(name).suffixes), "")


MARKED = ("\ufeffa", "\ufeff", "b\ufeffc", "d")


@pytest.mark.parametrize("ids", [MARKED[:1], MARKED], ids=["alone", "among others"])
@pytest.mark.parametrize("name", [*FORMATS, "list", "json"])
def test_a_byte_order_mark_in_an_id_survives(tmp_path: Path, name: str, ids: tuple[str, ...]) -> None:
    box = np.array([[1, 1, 9, 9]], np.float32)
    with StoreWriter(tmp_path / "store", feature_space="attacks") as store:
        for image_id in ids:
            store.write(image_id, height=40, width=50, boxes=box, features=np.ones((1, 8), np.float32))
    if name in FORMATS:
        file = tmp_path / f"exported{suffix(name)}"
        done("store", "export", tmp_path / "store", file, "--format", name)
        done("store", "import", file, tmp_path / "again", "--format", name)
    else:
        listed = done("store", "ids", tmp_path / "store", *(("--json",) if name == "json" else ())).out
        (tmp_path / "ids").write_text(listed, "utf-8")
        done("store", "copy", tmp_path / "store", tmp_path / "again", "--ids", tmp_path / "ids")
    with FeatureStore(tmp_path / "again") as again:
        assert sorted(again.ids()) == sorted(ids)


def writers(made: World, disk: Path) -> dict[str, tuple[object, ...]]:
    """Commands that write below `disk`."""
    photo = min((made / "world/coco/train2014").glob("*.jpg"), default=None)
    exports = {
        f"export {name}": ("store", "export", made / "perfect", disk / f"o{suffix(name)}", "--format", name)
        for name in FORMATS
    }  # fmt: skip
    asked = ("--store", made / "store", "--captions", made.captions)
    return {
        **exports,
        "copy": ("store", "copy", made / "perfect", disk / "o"),
        "extract": ("extract", made / "world/coco/train2014", disk / "o", "--detector", "toy", "--threads", 1),
        "toyworld": ("toyworld", disk / "o", "--num-images", 40),
        "show": ("store", "show", made / "store", "--draw", disk / "o.png", "--photo", "none"),
        "look": ("look", photo, "--detector", "toy", "--out", disk / "o.png"),
        "diff": ("store", "diff", made / "perfect", made / "perfect", "--html", disk / "o.html"),
        "labels": ("predict", made / "labels", "--store", made / "perfect", "--data", made / "own", "--out",
                   disk / "o.jsonl", "--scores", disk / "o.npz"),
        "retrieval": ("predict", made / "retrieval", "--store", made / "perfect", "--data", made / "world/flickr30k",
                      "--split", "test", "--out", disk / "o.npy"),
        "convert": ("convert", made / "run", disk / "o", "--to", "roibeam"),
        "official": ("convert", made / "run", disk / "o.bin", "--to", "official"),
        "evaluate": ("evaluate", made / "run", *asked, "--out", disk / "o", "--max-images", 8),
        "pretrain": ("pretrain", disk / "o", *asked, *VISUALBERT, "--steps", 2, "--tokenizer",
                     made / "world/vocab.txt"),
        "finetune": ("finetune", disk / "o", "--task", "labels", "--from", "none", "--store", made / "perfect",
                     "--data", made / "own", *VISUALBERT, "--steps", 2, "--tokenizer", made / "world/vocab.txt"),
    }  # fmt: skip


WRITERS = tuple(writers(World(Path("/")), Path("/")))


@pytest.mark.parametrize("kilobytes", [4, 40, 500])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    attacked: World, small_disk: Callable[[int], Path], name: str, kilobytes: int
) -> None:
    disk = small_disk(kilobytes)
    words = writers(attacked, disk)[name]
    ended = run(*words, gigabytes=None)
    if ended.kind != "ok":  # it lacked room
        ended.refused("No space left on device", str(disk), "the disk is full")
        os.system(f"mount -o remount,size=2000M {disk}")
        done(*words)
    assert not [each for each in disk.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize("words", ["store ids", "store ids --json", "store info", "store show"])
def test_a_full_standard_output_is_one_line(attacked: World, words: str) -> None:
    full = lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)  # noqa: E731
    run(*words.split(), attacked / "store", before=full).refused("No space left on device: <stdout>")


PLACES = {  # the file, and a command that reads it
    "results.jsonl": "score labels {file} --data {made}/own",
    "train.jsonl": "finetune {out} --task labels --from none --store {made}/perfect --data {folder} --system vlbert",
    "s.npy.ids.json": "score retrieval {folder}/s.npy --data {made}/world/flickr30k --split test",
    "labels/config.json": "predict {folder}/labels --store {made}/perfect --data {made}/own --out {out}",
    "captions.json": "evaluate {made}/run --store {made}/store --captions {file} --out {out}",
    "store/plan.json": "progress {folder}/store",
}


@pytest.mark.parametrize("text", [DEEP, '{"image": ' + DEEP, f'{{"id": {DIGITS}}}', '{"id": NaN'], ids=range(4))
@pytest.mark.parametrize("place", PLACES)
def test_json_made_to_hurt_is_one_line_that_names_the_file(
    attacked: World, tmp_path: Path, place: str, text: str
) -> None:
    if "/" in place:
        attacked.copied(place.partition("/")[0], tmp_path)
    np.save(tmp_path / "s.npy", np.ones((2, 2), np.float32))
    for path in (tmp_path / place, *tmp_path.glob("store/plan/plan.json")):  # a plan has a copy
        path.write_text(f"{text}\n")
    at = {"file": tmp_path / place, "folder": tmp_path, "made": attacked.folder, "out": tmp_path / "out"}
    run(*PLACES[place].format(**at).split()).refused(Path(place).name)


@pytest.mark.parametrize("shape", ["(-50, 10)", "(4000000000, 4000000000)", "(" * 5000 + ")" * 5000, "(10**400, 1)"])
def test_an_array_of_an_absurd_shape_is_one_line(attacked: World, tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (file := tmp_path / "s.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    Path(f"{file}.ids.json").write_text(json.dumps({"captions": ["a#0", "b#0"], "images": ["a", "b"], "folds": 1}))
    ended = run("score", "retrieval", file, "--data", attacked / "world/flickr30k", "--split", "test")
    ended.refused(file.name, "no array of numpy")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def bits(blocks: int) -> bytes:
    """Empty AC coefficients of so many blocks: runs of 32,767, then ends of single blocks."""
    text = "0001" + "1" * 14
    text = text * (blocks // 32_767) + "0000" * (blocks % 32_767)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def hiding(between: bytes, *, scans: int = 2000, side: int = 2304) -> bytes:
    """A progressive JPEG with `between` where libjpeg waits for a restart marker, and many scans behind it."""
    blocks, first = (side // 8) ** 2, 65_535
    head = segment(0xDB, bytes(1) + b"\1" * 64) + segment(0xC2, struct.pack(">BHH", 8, side, side) + b"\1\1\x11\0")
    tables = segment(0xC4, b"\0\1" + bytes(16)) + segment(0xC4, b"\x10" + bytes([0, 0, 0, 2, *[0] * 13, 0xE0]))
    dc = segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(blocks // 8 + 1)
    opened = segment(0xDD, struct.pack(">H", first)) + segment(0xDA, bytes([1, 1, 0, 1, 1, 0])) + bits(first)
    rest = b"\xff\xd0" + bits(blocks - first) + segment(0xDD, bytes(2))
    empty = bits(blocks)
    hidden = b"".join(segment(0xDA, bytes([1, 1, 0, k % 62 + 2, k % 62 + 2, 0])) + empty for k in range(scans))
    return b"\xff\xd8" + head + tables + dc + opened + between + rest + hidden + b"\xff\xd9"


LENGTH = b"\xfe\x00"  # reads as a length of 65,024 bytes


@pytest.mark.parametrize("between", [
    b"", b"\xff\x02" + LENGTH, b"\xff\xbf" + LENGTH, b"\xff\x01" + LENGTH, b"\xff\xd5\xff\xd3" + LENGTH, b"\xff" * 9,
    b"\xff\x00" + LENGTH, b"\xff\x5a\xff\xff\x30" + LENGTH, b"\0" * 50,
], ids=bytes.hex)  # fmt: skip
def test_hidden_scans_cost_their_own_photo_alone(attacked: World, tmp_path: Path, between: bytes) -> None:
    photos = sorted((attacked / "world/coco/train2014").glob("*.jpg"))[:8]
    (folder := tmp_path / "photos").mkdir()
    files = {photo.name: photo.read_bytes() for photo in photos} | dict.fromkeys(map(str, range(18)), hiding(between))
    for name, data in files.items():
        (folder / name).with_suffix(".jpg").write_bytes(data)
    options = ("--detector", "toy", "--load-timeout", 2, "--max-failures", 1, "--threads", 1)
    done("extract", folder, tmp_path / "store", *options)
    assert done("store", "dead-letters", tmp_path / "store").out.count("too many scans") == 18
    assert len(done("store", "ids", tmp_path / "store").out.split()) == 8
