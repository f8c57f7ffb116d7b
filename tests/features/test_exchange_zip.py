"""VL-BERT's zip of json files, and a reader of zips that believes nothing they say."""

import base64
import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import letters, measured, outcomes, records
from fuzz_child import traced_peak
from refusals import refused

from roibeam.features.exchange import vlbert_zip
from roibeam.features.exchange.vlbert_zip import FORMAT, ZipMembers, ZipOutput
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat


def encoded(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def fields(**changes: Any) -> dict[str, Any]:
    record = measured("a")
    return {
        "image_id": "a", "image_h": 480, "image_w": 640, "num_boxes": 3, "boxes": encoded(record.boxes),
        "features": encoded(record.features), **changes,
    }  # fmt: skip


def write_zip(path: Path, members: dict[str, Any], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, value in members.items():
            archive.writestr(name, value if isinstance(value, bytes) else json.dumps(value))
    return path


def test_their_reader_sees_their_fields(tmp_path: Path) -> None:
    """The lines of conceptual_captions.py and zipreader.py, as far as they touch the file."""
    FORMAT.write([measured("train/b")], tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None and archive.infolist()[0].compress_type == zipfile.ZIP_STORED
        data = json.loads(archive.read(str.strip("/train/b.json", "/")).decode())
    boxes, rows, features = (
        np.frombuffer(base64.decodebytes(data[name].encode()), np.float32).reshape((data["num_boxes"], -1))
        for name in ("boxes", "classes", "features")
    )
    record = measured("train/b")
    np.testing.assert_array_equal(boxes, record.boxes)
    np.testing.assert_array_equal(features, record.features)
    assert rows.shape == (3, 7) and rows.max(axis=1).tolist() == pytest.approx(record.class_scores.tolist())
    assert (data["image_w"], data["image_h"]) == (640, 480)


def test_samples_of_the_authors_layout(shared_data: Path) -> None:
    folder = shared_data / "formats/vlbert_zip"
    found = records(FORMAT, folder / "train_frcnn.zip")
    sizes = [(each.image_id, each.num_regions, each.height) for each in found]
    assert sizes == [("00000000", 16, 480), ("00000001", 10, 427), ("00000002", 12, 360)]
    assert found[0].class_scores[0] > 0.9 and found[0].features.shape == (16, 2048)
    assert not FORMAT.looks_like(folder / "train_image.zip")
    refused(r"is one of VL-BERT's .*is it the zip of the images", FORMAT.open, folder / "train_image.zip")


def test_attributes_line_ends_in_base64_deflate_and_other_files(tmp_path: Path) -> None:
    rows = np.array([[0.1, 0.2, 0.7], [0.9, 0.1, 0], [0, 0.5, 0.5]], np.float32)
    wrapped = base64.encodebytes(measured("a").features.astype("<f4").tobytes()).decode()
    path = tmp_path / "a.zip"
    members = {"f/": b"", "f/1.json": fields(attrs=encoded(rows), features=wrapped), "__MACOSX/f/._1.json": b"x"}
    write_zip(path, members | {"read me.txt": b"hello"}, zipfile.ZIP_DEFLATED)
    record, letter = sorted(outcomes(FORMAT, path), key=lambda each: isinstance(each, DeadLetter))
    assert isinstance(record, RegionRecord) and isinstance(letter, DeadLetter)
    assert record.image_id == "f/1" and record.attribute_ids is not None
    assert record.attribute_ids.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(record.features, measured("a").features)
    assert (letter.image_id, letter.reason) == ("read me.txt", "no json")


@pytest.mark.parametrize(
    "value, reason, words",
    [
        (b"[]", "bad json", r"'{' is expected"),
        (b"\xff", "bad json", "no flat JSON"),
        (fields(boxes=[1, 2]), "bad json", "a string or a number is expected"),
        (b'{"boxes": 1, "boxes": 2}', "bad json", "'boxes' twice"),
        (fields(boxes=5), "missing field", "boxes must be text of base64, got int"),
        (fields(num_boxes=4), "wrong shape", "boxes has shape (12,), (4, 4) is expected"),
        (fields(num_boxes=-1), "bad number", "num_boxes"),
        (fields(image_h=None), "bad number", "image_h"),
        (fields(features="A*"), "bad base64", "features"),
        (fields(features=encoded(np.zeros((3, 9)))), "wrong shape", "(3, 8) is expected"),
        (fields(classes=encoded(np.eye(3, 7))), "other fields", "has ['classes'], the first member has []"),
        (fields(boxes=encoded(np.full((3, 4), 5000))), "boxes outside the image", "5000"),
    ],
)
def test_a_bad_member_is_a_dead_letter(tmp_path: Path, value: Any, reason: str, words: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"1.json": fields(), "2.json": value})
    letter = letters(FORMAT, path)["2"]
    assert (letter.reason, letter.location) == (reason, f"{path}@/2.json")
    assert words in letter.detail and letter.detail.isprintable()


@pytest.mark.parametrize("name", ["../up.json", "/root.json", "a/../../b.json", "a\\b.json", "./a.json", ".json"])
def test_names_that_lead_out_are_no_ids(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"1.json": fields(), name: fields()})
    (letter,) = letters(FORMAT, path).values()
    assert letter.reason == "bad image id"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_come_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for value in (fields(), fields(), fields(image_w=700)):
            archive.writestr("1.json", json.dumps(value))
    first, second, third = outcomes(FORMAT, tmp_path / "a.zip")
    assert isinstance(first, RegionRecord) and isinstance(second, Repeat) and isinstance(third, DeadLetter)
    assert third.reason == "another record of this image"


def bomb(size: int) -> bytes:
    return b'{"a": "' + b"A" * size + b'"}'


def test_bombs_passwords_and_strange_packing(tmp_path: Path) -> None:
    members = {"1.json": fields(), "2.json": bomb(2**22), "4.json": fields()}
    path = write_zip(tmp_path / "a.zip", members, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("3.json", json.dumps(fields()))
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02", 0, data.rfind(b"4.json"))
    data[at + 8] |= 1  # what an encrypted member says of itself
    path.write_bytes(data)
    found = letters(FORMAT, path)
    reasons = {name: letter.reason for name, letter in found.items()}
    assert reasons == {"2": "entry too large", "3": "unusual compression", "4": "encrypted"}
    assert "inflates from" in found["2"].detail and "at most 200 times" in found["2"].detail


def test_a_member_inflates_no_further_than_it_says(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"1.json": fields(), "2.json": bomb(2**24)}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", data, data.rfind(signature) + place, 1000)
    path.write_bytes(data)
    with ZipMembers(path) as members:
        words = "does not inflate to the 1,000 bytes"
        assert traced_peak(lambda: refused(words, members.read, 1)) < 300_000


def test_archives_that_cannot_be(tmp_path: Path) -> None:
    data = write_zip(tmp_path / "a.zip", {"1.json": fields(), "2.json": fields()}).read_bytes()
    end = data.rfind(b"PK\x05\x06")
    second = data.rfind(b"PK\x01\x02")

    def changed(at: int, value: int, width: str = "I") -> bytes:
        broken = bytearray(data)
        struct.pack_into("<" + width, broken, at, value)
        return bytes(broken)

    first = data.find(b"PK\x01\x02")
    overlapping = bytearray(data)
    for entry in (first, second):  # both claim nearly the whole file
        struct.pack_into("<I", overlapping, entry + 20, first - 100)
        struct.pack_into("<I", overlapping, entry + 42, 0)
    for broken, words in (
        (b"", "no end of a zip; is it cut"),
        (data[: len(data) // 2], "no end of a zip; is it cut"),
        (changed(end + 10, 60000, "H"), "a list of 60,000 members"),
        (changed(end + 10, 1, "H"), "bytes after its list of 1 members"),
        (changed(end + 16, 5), "its list of members is cut"),
        (changed(end + 16, 2**31), "a list of 2 members in"),
        (changed(end + 4, 1, "H"), "one of several disks"),
        (changed(second + 42, 2**31), "would be at"),
        (changed(second + 24, 2**32 - 1), "a member without its size"),
        (changed(second + 28, 60000, "H"), "its list of members is cut"),
        (bytes(overlapping), "its members overlap"),
    ):
        (tmp_path / "b.zip").write_bytes(broken)
        with pytest.raises(ValueError, match=rf"b\.zip: not a whole zip file \(.*{words}") as error:
            FORMAT.open(tmp_path / "b.zip")
        assert "\n" not in str(error.value)
        FORMAT.looks_like(tmp_path / "b.zip")  # never raises
    for broken, words in (
        (changed(second + 42, 0), "holds something else"),
        (changed(second + 16, 5), "checksum"),
        (changed(data.rfind(b"PK\x03\x04"), 5), "holds something else"),
    ):
        (tmp_path / "b.zip").write_bytes(broken)
        letter = letters(FORMAT, tmp_path / "b.zip")["2"]
        assert letter.reason == "damaged archive" and words in letter.detail
    refused("no regular file", ZipMembers, Path("/dev/null"))


def test_zips_of_many_members_and_of_old_names(tmp_path: Path) -> None:
    for count in (5_000, 66_000):  # over 65,535: zip64
        with open(tmp_path / f"{count}.zip", "wb") as file:
            output = ZipOutput(file)
            for number in range(count):
                output.put(b"%06d.json" % number, b"{}")
            output.finish()
    tracemalloc.start()
    with ZipMembers(tmp_path / "5000.zip"):
        assert tracemalloc.get_traced_memory()[0] < 5_000 * 130
        tracemalloc.stop()
    with ZipMembers(tmp_path / "66000.zip") as members:
        assert members.names[-1] == b"065999.json" and members.read(65_999) == b"{}"
    with zipfile.ZipFile(tmp_path / "66000.zip") as archive:
        assert len(archive.infolist()) == 66_000 and archive.read("065999.json") == b"{}"
    data = write_zip(tmp_path / "old.zip", {"aa.json": fields()}).read_bytes()
    (tmp_path / "old.zip").write_bytes(data.replace(b"aa.json", b"\x82a.json"))  # e acute in code page 437
    assert [record.image_id for record in records(FORMAT, tmp_path / "old.zip")] == ["éa"]


def test_places_beyond_four_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 GB taken to be 100 bytes, every number that needs 64 bits then is written so."""
    monkeypatch.setattr(vlbert_zip, "_SMALL", 100)
    with io.BytesIO() as file:
        output = ZipOutput(file)
        for name in (b"1.json", b"2.json"):
            output.put(name, b"x" * 90)
        output.finish()
        data = file.getvalue()
    hundred = struct.pack("<I", 100)
    at = data.rfind(b"PK\x01\x02") + 42
    assert data[at : at + 4] == hundred
    data = data[:at] + b"\xff" * 4 + data[at + 4 :]  # as it is with the true limit
    (tmp_path / "a.zip").write_bytes(data)
    with ZipMembers(tmp_path / "a.zip") as members:
        assert members.names == [b"1.json", b"2.json"] and members.read(1) == b"x" * 90
    assert zlib.crc32(b"x" * 90) in struct.unpack_from("<I", data, at - 26)
