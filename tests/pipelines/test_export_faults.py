"""Exports killed while they write: nothing under the name, and a rerun that gives the bytes of an undisturbed one."""

import functools
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from disturbed_runs import Run, export_in_small_steps
from fail_points import EXPORT, EXPORT_NAME, FailPoint, kill
from soak_share import share_of

sys.path.append(str(Path(__file__).parents[1] / "features"))
from exchange_examples import measured
from store_examples import FINGERPRINT, write_shard

from roibeam.features.exchange.formats import format_named
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore

pytestmark = [pytest.mark.faults, pytest.mark.slow]
NUM_RECORDS = 12
KILLS = [(EXPORT, 1), (EXPORT, 3), (EXPORT, 6), (EXPORT, 9), (EXPORT, 12)]
BEFORE_THE_NAME = (EXPORT_NAME, 1)
BEGIN_ANEW = ("lxmert-h5", "captioning-h5", "array-h5")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "store"
    folder.mkdir()
    write_shard(folder, 0, [measured(f"image{i:02}", 20 + i, seed=i) for i in range(NUM_RECORDS)])
    publish_store(folder, [0], fingerprint=FINGERPRINT, config={})
    return folder


def content(path: Path) -> dict[str, Any]:
    """All bytes of a file, or of the files in a folder; of an LMDB its size and entries, since the pages of one that
    was closed in between lie in another order."""
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
    return {
        str(each.relative_to(path)): entries(each) if each.suffix == ".mdb" else each.read_bytes() for each in files
    }


def entries(path: Path) -> tuple[int, list[tuple[bytes, bytes]]]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as opened, opened.begin() as transaction:
        return path.stat().st_size, [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


@pytest.mark.parametrize(
    "name",
    [
        "butd-tsv",
        "vlbert-zip",
        "milvlg-npz",
        "mmf-npy",
        "vilbert-lmdb",
        "mmf-lmdb",
        "uniter-lmdb",
        "oscar-tsv",
        "captioning-folders",
        *BEGIN_ANEW,
    ],
)
def test_a_killed_export_goes_on(store: Path, tmp_path: Path, name: str) -> None:
    suffixes = format_named(name).suffixes
    file = "file" + (suffixes[0] if suffixes else "")
    (tmp_path / "undisturbed").mkdir()
    assert Run(export(store, tmp_path / "undisturbed" / file, name), tmp_path).wait().code == 0
    wanted = content(tmp_path / "undisturbed" / file)
    # Where only a share of the soaks runs, one kill among the records and the one before the name: of another format,
    # another one.
    for stage, count in [*share_of(KILLS, name), BEFORE_THE_NAME]:
        folder = tmp_path / f"{stage} {count}"
        folder.mkdir()
        work = export(store, folder / file, name)
        ended = Run(work, tmp_path, [FailPoint(stage, count, kill)]).wait()
        assert ended.code == -9 and ended.last_line.startswith(f"fail point: {stage}, number {count}: "), ended
        (left,) = folder.iterdir()
        assert left.name.startswith(f".{file}.") and left.name.endswith(".tmp")
        again = Run(work, tmp_path).wait()
        assert again.code == 0, again.said
        assert ("going on with what a stopped export left" in again.said) == (name not in BEGIN_ANEW), again.said
        assert [each.name for each in folder.iterdir()] == [file]
        assert content(folder / file) == wanted
        with format_named(name).open(folder / file) as opened:
            assert opened.num_entries == NUM_RECORDS


@pytest.mark.parametrize(
    "name",
    ["butd-tsv", "oscar-tsv", "vlbert-zip", "milvlg-npz", "captioning-folders", "vilbert-lmdb", "uniter-lmdb"],
)
def test_what_another_store_left_is_not_taken_over(store: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_shard(other, 0, [measured(f"image{i:02}", 3, seed=100 + i) for i in range(5)])
    publish_store(other, [0], fingerprint=FINGERPRINT, config={})
    suffixes = format_named(name).suffixes
    out = tmp_path / "out" / ("file" + (suffixes[0] if suffixes else ""))
    out.parent.mkdir()
    assert Run(export(store, out, name), tmp_path, [FailPoint(EXPORT_NAME, 1, kill)]).wait().code == -9
    ended = Run(export(other, out, name), tmp_path).wait()
    if name.endswith("lmdb"):
        assert ended.code == 1 and "is of another store or layout; it is removed: run the command again" in ended.said
        assert list(out.parent.iterdir()) == []
        ended = Run(export(other, out, name), tmp_path).wait()
    assert ended.code == 0, ended.said
    (tmp_path / "alone").mkdir()
    assert Run(export(other, tmp_path / "alone" / out.name, name), tmp_path).wait().code == 0
    assert [each.name for each in out.parent.iterdir()] == [out.name]
    assert content(out) == content(tmp_path / "alone" / out.name)
    with FeatureStore(other) as kept, format_named(name).open(out) as opened:
        assert opened.num_entries == len(kept)


def export(store: Path, out: Path, name: str) -> functools.partial[None]:
    return functools.partial(export_in_small_steps, store, out, name)
