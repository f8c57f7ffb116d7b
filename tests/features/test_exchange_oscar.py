"""Oscar's and VinVL's TSV files: the official writer's line, what their readers find, the files beside each other, and
what users have met: numbers of no boxes, labels of another detector, features that were left out."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_examples import letters, measured, outcomes, records
from refusals import refused

from roibeam.features.exchange.formats import recognise
from roibeam.features.exchange.oscar_tsv import FORMAT
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.writer import Repeat

GOLDENS = Path(__file__).parents[1] / "goldens"
RECORD = measured("7", 3)
SIZE = '7\t[{"height": 480, "width": 640}]'


def encoded(array: np.ndarray) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def six(record: RegionRecord) -> np.ndarray:
    """(K, 6): x1/W y1/H x2/W y2/H and the sides, as the reference says, not as the code does."""
    x1, y1, x2, y2 = record.boxes.astype(np.float64).T
    width, height = record.width, record.height
    return np.stack([x1 / width, y1 / height, x2 / width, y2 / height, (x2 - x1) / width, (y2 - y1) / height], axis=1)


def values(record: RegionRecord = RECORD, numbers: np.ndarray | None = None) -> np.ndarray:
    return np.concatenate([record.features, six(record) if numbers is None else numbers], axis=1)


def objects(record: RegionRecord = RECORD, **changes: Any) -> list[dict[str, Any]]:
    """Their objects; a field of `changes` replaces one, and None leaves it out."""
    pairs = zip(record.boxes.tolist(), "bab", strict=True)
    found = [{"rect": box, "class": name, "conf": 0.5} | changes for box, name in pairs]
    return [{name: value for name, value in each.items() if value is not None} for each in found]


def folder(path: Path, **files: Any) -> Path:
    """Files by their name without .tsv, "-" for "."; lines of text, an array as features, or JSON, of the image 7."""
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, np.ndarray):
            content = f"7\t{len(content)}\t{encoded(content)}"
        text = content if isinstance(content, str) else f"7\t{json.dumps(content)}"
        (path / f"{name.replace('_dot_', '.')}.tsv").write_text(text + "\n" * (not text.endswith("\n")))
    return path


def only(path: Path) -> RegionRecord:
    (record,) = records(FORMAT, path)
    return record


OBJECTS = {"objects": objects()}
WHOLE = [each | {"feature": encoded(row)} for each, row in zip(objects(), RECORD.features, strict=True)]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"features": values(), "hw": SIZE}, ""),
        ({"features": values(), "hw": "7\t480 640"}, ""),
        ({"features": values(), "hw": {"width": 640, "height": 480}}, ""),
        ({"features": values(), "predictions": {"image_h": 480, "objects": objects(), "image_w": 640}}, ""),
        ({"features": values(), "predictions": {"image_h": [480], "image_w": [640]} | OBJECTS}, "features.tsv"),
        ({"features": values(), "label": objects(), "hw": SIZE, "other": "x"}, ""),
        ({"features": RECORD.features, "label": objects(), "hw": SIZE}, ""),  # 2048: boxes are those of the labels
        ({"train_dot_feature": {"num_boxes": 3, "features": encoded(values())}, "train_dot_hw": SIZE}, ""),
        ({"val_img_frcnn_feats": values(), "val_hw": SIZE, "hw": "7\t1 1"}, ""),
        ({"x": values(), "x_dot_hw": SIZE}, "x.tsv"),
        ({"predictions": {"image_h": 480, "image_w": 640, "gt_objects": [{"class": "z"}], "objects": WHOLE}}, ""),
        ({"predictions": {"relations": [{"class": "on"}], "objects": WHOLE}, "hw": SIZE}, "predictions.tsv"),
    ],
)  # fmt: skip
def test_sizes_boxes_and_labels_from_the_files_beside_it(tmp_path: Path, files: dict[str, Any], named: str) -> None:
    """Guards each form that their code writes: a size that is not found would make shares of boxes in pixels."""
    path = folder(tmp_path / "f", **files) / named
    record = only(path)
    assert recognise(path) is FORMAT
    np.testing.assert_allclose(record.boxes, RECORD.boxes, atol=1e-3)
    assert (record.height, record.width, record.features.shape) == (480, 640, (3, 8))
    np.testing.assert_array_equal(record.features, RECORD.features)
    has_labels = not {"label", "predictions"}.isdisjoint(files)
    assert record.class_ids.tolist() == ([1, 0, 1] if has_labels else [0, 0, 0])  # by the sorted names
    assert set(record.class_scores.tolist()) == {0.5 if has_labels else 0}


@pytest.mark.parametrize("labels", [{}, {"label": objects()}])
def test_without_sizes_boxes_stay_shares(tmp_path: Path, labels: dict[str, Any]) -> None:
    path = folder(tmp_path / "f", features=values(), **labels)
    record = only(path)
    assert record.class_ids.tolist() == ([1, 0, 1] if labels else [0, 0, 0])
    assert (record.height, record.width) == (1, 1)
    np.testing.assert_allclose(record.boxes, six(RECORD)[:, :4], atol=1e-6)
    np.testing.assert_allclose(record.with_box_numbers().features, values(), atol=2e-3)
    with FORMAT.open(path) as file:
        assert (file.details["image_size"], file.details["boxes"]) == ("absent", "normalised")


FROM_FEATURES = np.concatenate([RECORD.features[:, :4] / [640, 480, 640, 480]] * 2, axis=1)[:, :6]
FROM_FEATURES[:, 4:] = FROM_FEATURES[:, 2:4] - FROM_FEATURES[:, :2]
WIDE = replace(RECORD, features=np.tile(RECORD.features, (1, 256)))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"features": values(numbers=FROM_FEATURES), "hw": SIZE}, "from the features in place of the boxes"),
        ({"features": values(numbers=FROM_FEATURES)}, "were computed from the features in place of the boxes"),
        ({"features": values(WIDE, np.ones((3, 6))), "hw": SIZE}, "are not x1/W y1/H"),
        ({"features": values(numbers=six(RECORD) * 9), "hw": SIZE}, "are no boxes in shares of a photo"),
        ({"features": RECORD.features, "hw": SIZE}, "has no boxes: no six numbers behind its features"),
        ({"features": values(), "label": objects()[:2], "hw": SIZE}, "labels of another detector cannot be joined"),
        ({"features": values(), "label": objects()[::-1], "hw": SIZE}, "pixels from its rects; .*in one order?"),
        ({"features": values(), "label": objects()[::-1]}, "pixels from its rects; .*labels of another detector"),
        ({"features": values(), "label": objects(), "hw": "7\t640 480"}, "in one order?"),
        ({"features": values(), "label": objects(), "hw": "8\t480 640"}, "in hw.tsv beside it: has no line"),
        ({"features": values(), "hw": f"{SIZE}\n7\t480 641"}, "in hw.tsv beside it: has 2 different lines"),
        ({"features": values(), "hw": "7\t480"}, "in hw.tsv beside it: width must be an integer"),
        ({"features": values(), "hw": "7\t[{]"}, "no flat JSON"),
        ({"features": RECORD.features, "label": objects()}, "height and width are not known; write hw.tsv beside it"),
        ({"predictions": {"objects": objects()}, "hw": SIZE}, r"\(TEST.OUTPUT_FEATURE was not set\)"),
        ({"predictions": {"objects": objects(feature="AAAA") + objects()}, "hw": SIZE}, "3 of 6 objects have feature"),
        ({"features": values(), "label": objects(conf="x"), "hw": SIZE}, "conf must be a number in every object"),
        ({"features": values(), "label": objects(conf=1.5), "hw": SIZE}, "conf has values from 1.5"),
        ({"features": values(), "label": objects(rect=[1, 2, 3]), "hw": SIZE}, "a list of 4 numbers in every"),
        ({"features": values(), "label": objects(attributes=["a"]), "hw": SIZE}, "attr_scores as many numbers"),
        ({"features": values(), "label": objects(**{"class": "x" * 300}), "hw": SIZE}, "attributes must be names, got"),
        ({"features": values(), "label": objects(**{"class": "\ud800"}), "hw": SIZE}, "attributes must be names, got"),
        ({"features": f"7\t3\t{encoded(values())}\t1", "hw": SIZE}, "other columns than key, number of boxes"),
        ({"features": f"7\t4\t{encoded(values())}", "hw": SIZE}, "features has shape"),
        ({"features": "7\t3\tA*", "hw": SIZE}, "features: "),
        ({"features": values() * np.nan, "hw": SIZE}, "NaN or infinity|no boxes"),
        ({}, "expected one features.tsv or the like in it, got 0 files"),
        ({"a_dot_features": values(), "b_dot_features": values()}, "got 2 files.*a.features.tsv, b.features.tsv"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_one_line(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    """Each alone in its file, so that the file is refused before anything is written."""
    message = refused(words, FORMAT.open, folder(tmp_path / "f", **files))
    assert str(tmp_path / "f") in message and message.isprintable()


def test_a_bad_line_among_others_is_a_dead_letter_and_repeats_are_left_out(tmp_path: Path) -> None:
    good = f"7\t3\t{encoded(values())}\n"
    deep = "[" * 100 + "]" * 100
    files = {
        "features": "".join(
            line.replace("7\t", f"{name}\t", 1) for name, line in zip("7789ab", [good] * 6, strict=True)
        ),
        "label": f"7\t{json.dumps(objects())}\n8\t{json.dumps(objects())[:-4]}\n9\t{json.dumps(objects(extra=1))}\n"
        f'a\t[{{"class": {deep}}}]\nb\t[{{"z": {deep}}}]\n',
        "hw": "".join(f"{name}\t480 640\n" for name in "789ab"),
    }
    path = folder(tmp_path / "f", **files)
    found = outcomes(FORMAT, path)
    assert [one.image_id for one in found if isinstance(one, RegionRecord)] == ["7", "9"]
    assert [one for one in found if isinstance(one, Repeat)] == [Repeat("7", f"{path}/features.tsv:2")]
    reasons = {name: letter.reason for name, letter in letters(FORMAT, path).items()}
    assert reasons == {"8": "bad json", "a": "bad json", "b": "bad json"}
    (path / "hw.tsv").write_text("7\t480 640\n9\t480 64")  # cut: a width that looks whole
    assert letters(FORMAT, path)["9"].reason == "torn line"
    (path / "features.tsv").write_text(good[:-20])
    refused("ends inside this line", FORMAT.open, path)


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: data + b"9\n", lambda data: b"1" + data])
@pytest.mark.parametrize("name", ["features", "predictions", "hw"])
def test_a_lineidx_that_does_not_fit(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Guards against a file that was cut, or came from another run than its index: its lines may look whole."""
    path = tmp_path / "f"
    FORMAT.write([RECORD, measured("8", 2)], path)
    assert len(records(FORMAT, path)) == 2
    index = path / f"{name}.lineidx"
    index.write_bytes(change(index.read_bytes()))
    refused(rf"{name}\.lineidx: does not fit {name}\.tsv", FORMAT.open, path)
    index.unlink()
    assert len(records(FORMAT, path)) == 2


def test_files_out_of_the_folder_are_not_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "f", features=values())
    folder(tmp_path, hw=SIZE)
    (path / "hw.tsv").symlink_to(tmp_path / "hw.tsv")
    refused("hw.tsv: is a link to a file outside the folder", FORMAT.open, path)
    (path / "hw.tsv").unlink()
    (path / "features.tsv").rename(tmp_path / "features.tsv")
    (path / "features.tsv").symlink_to(tmp_path / "features.tsv")
    refused("name the file itself", FORMAT.open, path)


def test_their_readers_find_what_they_look_for(tmp_path: Path) -> None:
    """The lines of tsv_file.py, run_retrieval.py, run_captioning.py and run_vqa.py that touch the files."""
    kept = [RECORD, measured("é", 2)]
    named = FORMAT.with_names([f"thing {number}" for number in range(6)], None)
    for layout in FORMAT.layouts:
        named.write(kept, tmp_path / layout, layout=layout)

    def row(layout: str, name: str, number: int) -> list[str]:
        offsets = (tmp_path / layout / f"{name}.lineidx").read_text().split()
        with open(tmp_path / layout / f"{name}.tsv", encoding="utf-8") as file:
            file.seek(int(offsets[number]))
            return [cell.strip() for cell in file.readline().split("\t")]

    for number, record in enumerate(kept):
        wanted = values(record)
        place = json.loads((tmp_path / "oscar/imageid2idx.json").read_text())[record.image_id]
        key, count, text = row("oscar", "features", place)
        found = np.frombuffer(base64.b64decode(text), np.float32).reshape(int(count), -1)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        labels = json.loads(row("oscar", "predictions", place)[1])
        assert (key, labels["image_h"], labels["image_w"]) == (record.image_id, 480, 640)
        classes = [f"thing {each}" for each in record.class_ids]
        assert [each["class"] for each in labels["objects"]] == classes
        caption = json.loads(row("captioning", "feature", number)[1])
        found = np.frombuffer(base64.b64decode(caption["features"]), np.float32).reshape(caption["num_boxes"], -1)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert [each["class"] for each in json.loads(row("captioning", "label", number)[1])] == classes
        offset = json.loads((tmp_path / "vqa/img_frcnn_feats_offset_map.json").read_text())[record.image_id]
        with open(tmp_path / "vqa/img_frcnn_feats.tsv", encoding="utf-8") as file:
            file.seek(offset)
            cells = [cell.strip() for cell in file.readline().split("\t")]
        np.testing.assert_allclose(
            np.frombuffer(base64.b64decode(cells[2]), np.float32).reshape(-1, 14), wanted, rtol=1e-6
        )


def test_the_official_writers_line(tmp_path: Path) -> None:
    """Its names are by index, `object0001` the first class; sizes lie in hw.tsv, as its data sets have them."""
    official = GOLDENS / "vinvl/small_rule1_most12_predictions.tsv"
    (tmp_path / "x_predictions.tsv").write_bytes(official.read_bytes())
    refused("height and width are not known; write hw.tsv beside it", FORMAT.open, tmp_path)
    (tmp_path / "x_hw.tsv").write_text('132417\t[{"height": 180, "width": 241}]\n')
    assert recognise(tmp_path / "x_predictions.tsv") is FORMAT and recognise(tmp_path) is FORMAT
    want = np.load(GOLDENS / "vinvl/small_rule1_most12.npz")
    with FORMAT.open(tmp_path) as file:
        assert file.names[0] is not None and len(file.names[0]) == len(set(want["labels"].tolist()))
        refused(
            "12 of its|of its .* names of class are not among the 2 that were given", file.use_names, ["a", "b"], None
        )
        file.use_names(*([f"{what}{number:0{digits}}" for number in range(1, count)] for what, digits, count in (
            ("object", 4, 1595), ("attribute", 3, 525),
        )))  # fmt: skip
        (record,) = file.outcomes("float32")
    assert isinstance(record, RegionRecord) and record.attribute_ids is not None
    np.testing.assert_array_equal(record.class_ids, want["labels"] - 1)
    np.testing.assert_array_equal(record.class_scores, want["scores"])
    np.testing.assert_allclose(record.boxes, want["boxes_photo"], atol=1e-4)
    best = want["attr_scores"][:, 0]
    np.testing.assert_array_equal(record.attribute_ids[best > 0], want["attr_labels"][best > 0, 0] - 1)
    np.testing.assert_array_equal(record.attribute_scores, best)
    np.testing.assert_allclose(record.with_box_numbers().features[:4], want["vector2054_rows"], rtol=1e-5, atol=1e-6)
