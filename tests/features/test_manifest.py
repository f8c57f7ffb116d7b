"""Manifests and fingerprints: round trips, refusals by their words, atomic writing."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from store_examples import DETAILS, FINGERPRINT, make_record, write_shard, write_store

from roibeam.features.folders.durable_files import write_json_atomically
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.features.shard import manifest as manifest_module
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, StoreManifest, data_file_name

MISSING = object()


def change(path: Path, name: str, value: Any, inside: int | None = None) -> None:
    content = json.loads(path.read_text())
    target = content if inside is None else content["shards"][inside]
    if value is MISSING:
        del target[name]
    else:
        target[name] = value
    path.write_text(json.dumps(content))


def test_names() -> None:
    assert data_file_name(3, "host-7_a") == "part-00003.host-7_a.lmdb"
    assert manifest_module.shard_manifest_name(123456) == "part-123456.json"
    for attempt in ("", "a/b", "..", "a.b", "x" * 65):
        refused("becomes part of a file name", data_file_name, 3, attempt)


def test_shard_manifest_round_trip(tmp_path: Path) -> None:
    dead = [DeadLetter("x\udc80", "/photos/x", "decode", "truncated", "ended after 3 bytes")]
    written = write_shard(tmp_path, 3, [make_record("a")], dead_letters=dead, stats={"seconds": 1.5})
    got = ShardManifest.read(tmp_path / "part-00003.json")
    assert got.dead_letters == tuple(dead) and got.stats == {"seconds": 1.5}
    assert got.fingerprint.details == {}  # they stand in the store manifest, once
    assert got.to_json() == written.to_json() == ShardManifest.from_json(got.to_json(), "m").to_json()


def test_empty_shard_names_no_file_and_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [])
    change(tmp_path / "part-00000.json", "added_in_2031", {"x": 1})
    got = ShardManifest.read(tmp_path / "part-00000.json")
    assert (got.data_file, got.num_records, got.first_id, got.feature_dtype) == (None, 0, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.json"]


def test_store_manifest_round_trip(tmp_path: Path) -> None:
    written = write_store(tmp_path / "s", [[make_record("a")], [], [make_record("b")]])
    got = StoreManifest.read(tmp_path / "s" / "manifest.json")
    assert got == written
    assert got.vocabulary == {"classes": ["cat", "dog"], "attributes": None}
    assert got.fingerprint.details == DETAILS


ESCAPES = ["../part.lmdb", "/etc/passwd", "a/b.lmdb", "a\\b.lmdb", "..", ".", "", ".hidden", "a\0b", "a\n", 3]


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("format", "roibeam-store", "format is 'roibeam-store', expected 'roibeam-shard'"),
        ("version", 2, "roibeam-shard version 2, this roibeam reads 1"),
        ("version", True, "version must be an integer"),
        ("num_records", -1, "num_records must be an integer from 0, got -1"),
        ("num_records", 1.0, "num_records must be an integer from 0, got 1.0"),
        ("num_records", 2**63, "num_records must be an integer"),
        ("num_records", 0, "null exactly when num_records is 0"),
        ("data_file", None, "null exactly when num_records is 0"),
        ("data_file", MISSING, "data_file must be there"),
        ("index_offset", MISSING, "index_offset must be an integer from 0, got 'nothing: the field is missing'"),
        ("content_digest", "abc", "content_digest must be 64 hex digits"),
        ("feature_dtype", "float64", r"feature_dtype must be float16\|float32\|bfloat16, got 'float64'"),
        ("first_id", 3, "first_id must be a string, got 3"),
        ("stats", [], "stats must be an object"),
        ("dead_letters", {}, "dead_letters must be a list"),
        ("dead_letters", ["x"], r"dead_letters\[0\]: content must be an object"),
        ("dead_letters", [{"image_id": "x"}], r"dead_letters\[0\]: location must be a string"),
        ("fingerprint", {"feature_space": "x", "numerics": {}}, "neither 64 hex digits nor imported:"),
        ("fingerprint", {"numerics": {}}, "fingerprint: feature_space must be a string"),
        *(("data_file", escape, "data_file must be a plain file name in the same folder") for escape in ESCAPES),
    ],
)
def test_bad_shard_manifests(tmp_path: Path, name: str, value: Any, words: str) -> None:
    write_shard(tmp_path, 0, [make_record("a")])
    path = tmp_path / "part-00000.json"
    change(path, name, value)
    assert str(path) in refused(words, ShardManifest.read, path)


@pytest.mark.parametrize(
    "inside, name, value, words",
    [
        (None, "format", "roibeam-shard", "expected 'roibeam-store'"),
        (None, "version", 3, "roibeam-store version 3"),
        (None, "num_records", 5, "num_records must be 2, the sum over its shards, got 5"),
        (None, "num_regions", 5, "num_regions must be 6, the sum over its shards, got 5"),
        (None, "vocabulary", {"classes": None}, "vocabulary: attributes must be null or a list of strings"),
        (None, "vocabulary", {"classes": [1], "attributes": None}, "vocabulary: classes must be null or a list"),
        (None, "config", None, "config must be an object"),
        (1, "shard", 0, "shards must be ascending shard numbers"),
        (1, "first_id", None, "shard 1 must be data_file and ids null exactly when"),
        (1, "manifest", "../x.json", r"shards\[1\]: manifest must be a plain file name"),
        (1, "data_file", "../x.lmdb", r"shards\[1\]: data_file must be a plain file name"),
        (1, "manifest_sha256", MISSING, r"shards\[1\]: manifest_sha256 must be 64 hex digits"),
    ],
)
def test_bad_store_manifests(tmp_path: Path, inside: int | None, name: str, value: Any, words: str) -> None:
    write_store(tmp_path / "s", [[make_record("a")], [make_record("b")]])
    path = tmp_path / "s" / "manifest.json"
    change(path, name, value, inside)
    assert str(path) in refused(words, StoreManifest.read, path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN}', "[" * 100_000, "\xff"])
def test_files_that_are_not_json_objects(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_bytes(text.encode("latin-1"))
    refused(r"m.json: (is not JSON|content must be an object)", StoreManifest.read, tmp_path / "m.json")


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    write_json_atomically(path, {"a": 1})

    def no_replace(source: object, target: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(manifest_module.os, "replace", no_replace)
    refused("power cut", write_json_atomically, path, {"a": 2}, error=OSError)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["m.json"]
    refused("Out of range float", write_json_atomically, path, {"a": float("nan")})


def test_feature_space_depends_on_content_not_on_spelling() -> None:
    assert feature_space_of({"a": 1, "b": (1, 2)}) == feature_space_of({"b": [1, 2], "a": 1})
    assert feature_space_of({"a": 1}) != feature_space_of({"a": 1.0})
    canonical = rb'{"name":"vg-\u00e9","selection":["score",0.5]}'
    assert feature_space_of({"selection": ["score", 0.5], "name": "vg-é"}) == hashlib.sha256(canonical).hexdigest()
    assert Fingerprint("imported:lxmert-tsv").details == {}
    one, other = (Fingerprint(FINGERPRINT.feature_space, {"shape": shape}) for shape in ((1, 2), [1, 2]))
    assert one == other


def test_details_have_an_exact_json_form_and_are_what_was_hashed() -> None:
    for details, words in (
        ({1: 2}, "the key 1; keys are strings"), ({"a": float("nan")}, "as JSON"), ({"a": b"x"}, "as JSON")
    ):  # fmt: skip
        refused(words, feature_space_of, details)
    other = {**DETAILS, "feature_dim": 9}
    refused("is not the hash of its details", Fingerprint, feature_space_of(DETAILS), {}, other)
