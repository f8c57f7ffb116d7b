"""Reads at http and https: right at servers that know little, bounded and refused at those that lie."""

from pathlib import Path

import pytest
from odd_servers import serve_oddly
from refusals import refused
from store_examples import make_record, write_store

from roibeam.features.folders import object_folder, web_driver
from roibeam.features.folders.folder_protocol import UNKNOWN_BYTES, UnreachableError
from roibeam.features.folders.object_folder import ObjectFolder
from roibeam.features.folders.web_driver import WebFiles, _below
from roibeam.features.reading.staging import StagedStore
from roibeam.features.verify import verify_store

DATA = bytes(range(251)) * 40


@pytest.mark.parametrize("mode", ["plain", "no HEAD"])
def test_a_server_that_knows_little_gives_the_same_store(tmp_path: Path, mode: str) -> None:
    write_store(tmp_path / "s", [[make_record(f"i{n}") for n in range(5)], [make_record("z")]])
    with serve_oddly(tmp_path, {".json": mode, ".lmdb": mode}) as url:
        assert verify_store(f"{url}/s") == [] and verify_store(f"{url}/s", deep=True) == []
        with StagedStore(f"{url}/s", tmp_path / "here") as store:
            assert [record.image_id for record in store] == ["i0", "i1", "i2", "i3", "i4", "z"]
        folder = ObjectFolder(f"{url}/s")
        assert {facts.num_bytes for facts in folder.listing("part-").values()} == {UNKNOWN_BYTES}
        found = dict(folder.read_many(["manifest.json", "none.json"]))
        assert found["none.json"] is None and found["manifest.json"] == (tmp_path / "s/manifest.json").read_bytes()


@pytest.mark.parametrize("mode", ["plain", "ranges"])
def test_ranges_and_seeks_give_the_bytes_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(web_driver, "_BLOCK_BYTES", 700)
    (tmp_path / "f.bin").write_bytes(DATA)
    (tmp_path / "empty.bin").write_bytes(b"")
    with serve_oddly(tmp_path, {".bin": mode}) as url:
        folder = ObjectFolder(url)
        for start, end in ((0, 10), (300, 2900), (len(DATA) - 5, len(DATA) + 5), (4, 4)):
            assert folder.read_range("f.bin", start, end) == DATA[start:end]
        assert folder.read_bytes("empty.bin") == b"" and folder.num_bytes("f.bin") == len(DATA)
        with WebFiles().open(f"{url}/f.bin") as file:
            assert file.read(1500) == DATA[:1500] and file.seekable() is (mode == "ranges")
            if mode == "ranges":
                assert file.seek(-9, 2) and file.read(99) == DATA[-9:] and file.seek(3) == 3
                assert file.read(2000) == DATA[3:2003]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("endless", "has more than 65536 bytes"),
        ("declared", "has 10000000000000 bytes, expected at most 65536"),
        ("bomb", "its server sends it packed"),
        ("other range", "sent another range"),
        ("short range", "bytes of a range of"),
        ("long range", "and announced"),
        ("ranges of more", "bytes of a range of|is a range of"),
        ("slow", "bytes in 0 s"),
        ("loop", "TooManyRedirects"),
    ],
)
def test_answers_that_lie_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: str) -> None:
    for module in (web_driver, object_folder):
        monkeypatch.setattr(module, "MAX_METADATA_BYTES", 2**16)
    monkeypatch.setattr(web_driver, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(object_folder, "WAIT_SECONDS", (0.0,))
    (tmp_path / "f.json").write_bytes(DATA)
    (tmp_path / "g.lmdb").write_bytes(DATA)
    with serve_oddly(tmp_path, {"": mode}) as url:
        folder = ObjectFolder(url)
        with pytest.raises((ValueError, UnreachableError), match=words):
            if "range" in mode:
                folder.read_range("g.lmdb", 100, 5000 if mode != "ranges of more" else 2 * len(DATA))
            else:
                WebFiles().cat_file(f"{url}/f.json") if mode == "declared" else folder.read_bytes("f.json")


def test_a_file_larger_than_its_manifest_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.lmdb").write_bytes(DATA)
    with serve_oddly(tmp_path, {".lmdb": "declared"}) as url:
        refused("its manifest says 10040", ObjectFolder(url).download, "g.lmdb", tmp_path / "here", len(DATA))


@pytest.mark.parametrize(
    ("link", "name"),
    [
        ("part-00000.json", "part-00000.json"),
        ("./sub/", "sub/"),
        ("/store/a.json", "a.json"),
        ("https://h.org:1/store/a.json", "a.json"),
    ],
)
def test_links_directly_below_a_folder_are_listed(link: str, name: str) -> None:
    assert _below("http://h.org:1/store", link) == name


@pytest.mark.parametrize("link", ["../a.json", "sub/a.json", "/etc/passwd", "..", "../", "?C=N;O=D", "a\\..\\b",
                                  "http://other.org/store/a.json", "file:///etc/passwd"])  # fmt: skip
def test_other_links_are_not(link: str) -> None:
    assert _below("http://h.org:1/store", link) == ""
