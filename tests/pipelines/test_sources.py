"""Sources: what is found, which ids it gets, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.datasets.conceptual_captions import BadRow, CaptionRow, read_caption_tsv
from pipelines.sources import open_source, read_captions


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def ids(*args: object, **options: object) -> list[str]:
    return [image.image_id for image in open_source(*map(str, args), **options).images]  # type: ignore[arg-type]


def test_folder_ids_are_paths_without_extension_sorted_by_bytes(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPG", "sub/a.png", "a b é.webp", ".hidden.jpg", ".git/x.jpg", "notes.txt")
    source = open_source(str(tmp_path))
    assert [image.image_id for image in source.images] == ["a b é", "b", "sub/a"]
    assert source.notes == ["1 files without an image extension left out"]
    assert ids(tmp_path, id_rule="with-extension") == ["a b é.webp", "b.JPG", "sub/a.png"]


def test_pattern_ids_are_relative_to_the_part_without_wildcards(tmp_path: Path) -> None:
    touch(tmp_path, "one/a.jpg", "one/b.png", "two/a.jpg")
    assert ids(tmp_path / "*" / "*.jpg") == ["one/a", "two/a"]
    assert ids(tmp_path / "**" / "b.*") == ["one/b"]
    touch(tmp_path, "odd[1]/c.jpg")  # an existing folder with a wildcard in its name is a folder
    assert ids(tmp_path / "odd[1]") == ["c"]


def test_coco_files_of_the_pack(shared_data: Path) -> None:
    captions = shared_data / "coco" / "captions_train2014.json"
    source = open_source(str(captions), image_root=str(shared_data / "images"))
    assert len(source.images) == 8
    assert source.images[0].image_id == "COCO_train2014_000000000790"
    assert all(Path(image.location).is_file() for image in source.images)
    rows, notes = read_captions(str(captions))
    assert len(rows) == 40 and not notes
    assert {image_id for image_id, _ in rows} == {image.image_id for image in source.images}
    instances = shared_data / "coco" / "instances_train2014.json"
    assert ids(instances, image_root=str(shared_data / "images")) == [image.image_id for image in source.images]
    with pytest.raises(ValueError, match="no captions in it"):
        read_captions(str(instances))


def test_caption_tsv_of_the_pack(shared_data: Path) -> None:
    tsv = shared_data / "cc" / "local.tsv"
    source = open_source(str(tsv), image_root=str(shared_data))
    assert "images/awkward/does_not_exist" in {image.image_id for image in source.images}
    assert len(source.images) == len({image.image_id for image in source.images}) == 26
    assert len(read_captions(str(tsv))[0]) == 68


def test_bad_caption_rows_are_counted_with_their_reason(shared_data: Path) -> None:
    rows = list(read_caption_tsv(str(shared_data / "cc" / "bad_rows.tsv")))
    reasons = {row.line: row.reason for row in rows if isinstance(row, BadRow)}
    url = "URL: download it and give the local path"
    assert reasons == {
        **dict.fromkeys((1, 6, 7, 9, 11, 12, 13), url),
        **{2: "no tab", 3: "empty caption", 4: "empty path", 5: "3 columns, expected 2", 8: "not UTF-8"},
    }


def test_caption_rows_are_read_without_quoting_and_with_any_line_end(tmp_path: Path) -> None:
    tsv = tmp_path / "c.tsv"
    tsv.write_bytes('"a ""b""\ta.jpg\r\n\nété 🐱\tsub/b.png'.encode())
    rows = list(read_caption_tsv(str(tsv)))
    assert rows == [CaptionRow(1, '"a ""b""', "a.jpg", "a"), CaptionRow(3, "été 🐱", "sub/b.png", "sub/b")]


def test_tsv_rows_cannot_leave_the_image_folder(tmp_path: Path) -> None:
    tsv = tmp_path / "c.tsv"
    tsv.write_text('up\t../secret.jpg\nroot\t/etc/x.jpg\nfine "quoted"\ta/b.jpg\n')
    rows = list(read_caption_tsv(str(tsv)))
    assert [getattr(row, "reason", None) for row in rows] == ["path leaves the image folder"] * 2 + [None]
    source = open_source(str(tsv))
    assert [image.image_id for image in source.images] == ["a/b"]
    assert source.notes == ["2 rows left out: 2 path leaves the image folder (lines 1, 2)"]


def coco(tmp_path: Path, *names: str) -> Path:
    images = [{"id": i, "file_name": name, "height": 1, "width": 1} for i, name in enumerate(names)]
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": []}))
    return tmp_path / "coco.json"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "missing", "no such folder, file or pattern: .*missing"),
        (lambda p: p, "no images in"),
        (lambda p: coco(p, "../../etc/passwd.jpg"), "leaves the image folder"),
        (lambda p: coco(p), "no images in"),
        (lambda p: coco(p, "a.jpg", "a.png"), "two images have the id 'a'"),
        (lambda p: coco(p, "x" * 512 + ".jpg"), "has 512 bytes in UTF-8; ids have 1 to 511"),
        (lambda p: (touch(p, "a.jpg", "a.png"), p)[1], "two images have the id 'a'.*--id-rule with-extension"),
        (lambda p: ((p / "a.json").write_text("{"), p / "a.json")[1], "not a json file"),
        (lambda p: ((p / "a.json").write_text("[1]"), p / "a.json")[1], 'expected a COCO file with "images"'),
        (lambda p: ((p / "a.json").write_text('{"images": [{"id": 1}], "annotations": []}'), p / "a.json")[1], "lacks"),
        (lambda p: ((p / "a.csv").write_text("x"), p / "a.csv")[1], "expected a folder, a glob pattern"),
        (
            lambda p: ((p / "a.tsv").write_text("cap\thttp://x/y.jpg"), p / "a.tsv")[1],
            r"no images in .*a\.tsv; 1 rows left out: 1 URL: download it",
        ),
    ],
)
def test_unusable_sources_are_one_clear_error(tmp_path: Path, make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_source(str(make(tmp_path)))  # type: ignore[operator]


def test_ids_are_counted_in_bytes_not_letters(tmp_path: Path) -> None:
    assert len(ids(coco(tmp_path, "é" * 255 + ".jpg"))) == 1  # 510 bytes
    with pytest.raises(ValueError, match="512 bytes"):
        open_source(str(coco(tmp_path, "é" * 256 + ".jpg")))
