"""`roibeam store export` as a folder of shards, of parquet or WebDataset: parts, kills, URLs, and back to a store."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import measured
from forks import KILLED, in_a_fork
from object_store import URL, kill_at
from tiny_commands import Cli, ok, one_line

from roibeam.features.exchange.exact_records import ExactFormat
from roibeam.features.folders.object_folder import ObjectFolder
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines import import_features
from roibeam.pipelines.data.captions.caption_files import read_annotations
from roibeam.pipelines.extract.stores import store_export
from roibeam.pipelines.extract.stores.store_export import export_store

BOTH = ("parquet", "webdataset")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten images with captions, in three shards that are not in the order of ids."""
    ids = [f"i{number}" for number in (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)]
    records = [measured(image_id, 2 + number, seed=number) for number, image_id in enumerate(ids)]
    captions = {image_id: [f"a photo of {image_id}", "zwölf", "zwölf"] for image_id in ids[::2]}
    words = [f"thing {number}" for number in range(6)]
    write_store(tmp_path / "store", records, feature_space="drawn", classes=words, captions=captions, shard_bytes=3000)
    return tmp_path / "store"


@pytest.mark.parametrize("name", BOTH)
def test_parts_make_the_folder_that_one_process_makes_and_a_store_comes_back(
    roibeam: Cli, store: Path, tmp_path: Path, name: str
) -> None:
    words = ("store", "export", store, "--format", name, "--shard-size", 3)
    alone = json.loads(ok(roibeam(*words, tmp_path / "alone", "--json")).out)
    assert (alone["records"], alone["shards"], alone["missing"]) == (10, 4, 0)
    first = ok(roibeam(*words, tmp_path / "parts", "--part", "2/3")).out
    assert "3 records in 1 shard written; 3 shards of other parts missing" in first
    done = roibeam("store", "import", tmp_path / "parts", tmp_path / "half")
    assert "3 shards of 4 missing, the first is number 0" in one_line(done)
    for part in ("3/3", "1/3"):
        ok(roibeam(*words, tmp_path / "parts", "--part", part))
    files = {each.name: each.read_bytes() for each in (tmp_path / "alone").iterdir()}
    assert {each.name: each.read_bytes() for each in (tmp_path / "parts").iterdir()} == files and len(files) == 5
    assert "all shards are there" in ok(roibeam(*words, tmp_path / "parts")).out

    ok(roibeam("store", "import", tmp_path / "parts", tmp_path / "back"))
    assert verify_store(tmp_path / "back", deep=True) == []
    with FeatureStore(store) as kept, FeatureStore(tmp_path / "back") as back:
        assert back.manifest.content_digest == kept.manifest.content_digest and back.vocabulary == kept.vocabulary
        assert back.fingerprint == kept.fingerprint and len(kept.manifest.shards) > 1
        assert sorted(read_annotations(back)) == sorted(read_annotations(kept)) != []
    assert roibeam("store", "diff", store, tmp_path / "parts").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "parquet", "--shard-size", 4), "exists already and is not of this export"),
        (("--format", "parquet", "--dtype", "float32", "--shard-size", 3), "exists already and is not of this export"),
        (("--format", "webdataset", "--shard-size", 3), "exists already and is not of this export"),
        (("--format", "milvlg-npz"), "exists already"),
        (("--format", "milvlg-npz", "--dtype", "float32"), "it is for parquet and webdataset"),
        (("--format", "milvlg-npz", "--part", "1/2"), "are for a folder of shards"),
        (("--format", "parquet", "--part", "3/2"), "expected a part and the number of parts"),
        (("--format", "parquet", "--dtype", "int8"), "choose one of float16"),
    ],
)
def test_refusals(roibeam: Cli, store: Path, tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    ok(roibeam("store", "export", store, tmp_path / "out", "--format", "parquet", "--shard-size", 3))
    before = sorted((tmp_path / "out").iterdir())
    done = roibeam("store", "export", store, tmp_path / "out", *words)
    assert done.code == 1 and message in one_line(done)
    assert sorted((tmp_path / "out").iterdir()) == before


@pytest.mark.parametrize("name", BOTH)
def test_killed_at_any_file_operation_the_same_command_goes_on(store: Path, tmp_path: Path, name: str) -> None:
    def export(out: Path, kill_at: int | None = None) -> tuple[int, list[str]]:
        return in_a_fork(lambda: export_store(store, out, format_name=name, shard_size=5), out, kill_at, reads=True)

    code, steps = export(tmp_path / "undisturbed")
    assert code == 0 and len(steps) >= 6
    wanted = {each.name: each.read_bytes() for each in (tmp_path / "undisturbed").iterdir()}
    for step in range(1, len(steps) + 1, 3):
        out = tmp_path / f"killed{step}"
        assert export(out, step)[0] == KILLED
        assert export(out)[0] == 0, step
        assert {each.name: each.read_bytes() for each in out.iterdir()} == wanted, step


@pytest.mark.parametrize("name", [*BOTH, "milvlg-npz"])
def test_to_a_url_and_after_a_kill(roibeam: Cli, store: Path, bucket: Path, tmp_path: Path, name: str) -> None:
    """Files of a folder come one by one: a stopped upload goes on, and what is of another export stays."""
    words = ("store", "export", store, f"{URL}{bucket}/out", "--format", name)
    words = (*words, "--shard-size", 3) if name in BOTH else words
    kill_at("data-00002*" if name in BOTH else "i5.npz", "before", lambda: roibeam(*words), bucket)
    assert 0 < len(list((bucket / "out").iterdir())) < 11
    if name not in BOTH:
        done = roibeam("store", "import", f"{URL}{bucket}/out", tmp_path / "half")
        assert "is not whole, its upload is under way or stopped" in one_line(done)
    ok(roibeam(*words))
    again = roibeam(*words)
    assert "all shards are there" in again.out if name in BOTH else "exists already" in one_line(again)
    assert len(list((bucket / "out").iterdir())) == (5 if name in BOTH else 10)
    ok(roibeam("store", "import", f"{URL}{bucket}/out", tmp_path / "back"))
    with FeatureStore(tmp_path / "back") as back:
        assert len(back) == 10


@pytest.mark.parametrize("name", ["milvlg-npz", "lxmert-h5"])
def test_of_two_exports_to_a_url_the_later_one_is_refused(
    store: Path, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It began while nothing was there; what the first one put there stays."""
    out, check = bucket / "out.h5", store_export._Check.__call__

    def slow(self: Any, *arguments: Any) -> None:
        check(self, *arguments)
        out.mkdir() if name == "milvlg-npz" else out.write_text("first")
        if name == "milvlg-npz":
            (out / "a.npz").write_text("first")

    monkeypatch.setattr(store_export._Check, "__call__", slow)
    with pytest.raises(ValueError, match="exists already; choose another name"):
        export_store(store, f"{URL}{out}", format_name=name)
    first = out / "a.npz" if name == "milvlg-npz" else out
    assert first.read_text() == "first" and (not out.is_dir() or len(list(out.iterdir())) == 1)


def test_of_two_sharded_exports_to_a_url_the_later_one_is_refused(
    store: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found it empty."""
    put_first = ObjectFolder.put_first
    monkeypatch.setattr(ObjectFolder, "put_first", lambda self, name, data: put_first(self, name, b"another"))
    with pytest.raises(ValueError, match="exists already and is not of this export"):
        export_store(store, f"{URL}{bucket}/out", format_name="parquet")
    assert [each.read_text() for each in (bucket / "out").iterdir()] == ["another"]


@pytest.mark.parametrize("name", BOTH)
def test_a_shard_whose_photos_have_no_regions(tmp_path: Path, name: str) -> None:
    records = [measured(f"i{number}", 0 if number == 4 else 2, seed=number) for number in range(5)]
    write_store(tmp_path / "store", records, feature_space="drawn", num_classes=6)
    assert export_store(tmp_path / "store", tmp_path / "out", format_name=name, shard_size=2).num_records == 5
    import_features(tmp_path / "out", tmp_path / "back")
    digests = [FeatureStore(tmp_path / each).manifest.content_digest for each in ("store", "back")]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("file", "more", "total"), [("data-00000-of-00004.tar", {"shard_size": 3}, 3), ("out.tar", {}, 10)]
)
def test_what_reads_back_otherwise_gets_no_name(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, more: dict[str, int], total: int
) -> None:
    """The next call would take it for whole."""
    monkeypatch.setattr(ExactFormat, "_fitting", lambda self, records, losses: islice(records, 2))
    folder = tmp_path / "new"
    folder.mkdir()
    out = folder if more else folder / file
    words = f"/{file}: 2 of {total} records read back from what was written: images are missing; it is not kept"
    with pytest.raises(ValueError, match=words):
        export_store(store, out, format_name="webdataset", **more)
    assert [each.name for each in folder.iterdir()] == ["README.md"] * bool(more)


@pytest.mark.parametrize("name", BOTH)
def test_a_store_in_float16_is_rounded_to_bfloat16_and_read_back(
    roibeam: Cli, store: Path, tmp_path: Path, name: str
) -> None:
    """And is another feature space then."""
    words = ("--format", name, "--dtype", "bfloat16", "--json")
    exported = json.loads(ok(roibeam("store", "export", store, tmp_path / "out", *words)).out)
    assert 0 < exported["read_back"]["feature_error"] < 2**-7
    assert list(exported["report"]["features"]) == ["8 x float16"]
    ok(roibeam("store", "import", tmp_path / "out", tmp_path / "back", "--dtype", "bfloat16"))
    with FeatureStore(store) as kept, FeatureStore(tmp_path / "back") as back:
        assert back.feature_dtype == "bfloat16" and back.fingerprint.feature_space == f"imported:{name}"
        for record in kept:
            found = back[record.image_id].features
            np.testing.assert_array_equal(found, record.features.astype(found.dtype))
