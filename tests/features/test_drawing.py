"""Regions on a photo, pixel by pixel; and what a notebook shows of records and stores."""

import dataclasses
import io
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from refusals import refused
from store_examples import make_record, write_store

from roibeam.features.reading.batch_order import BatchStream
from roibeam.features.record.fingerprint import imported_fingerprint
from roibeam.features.record.notebook import regions_html
from roibeam.features.record.region_drawing import PALETTE, colours_by_class, draw_regions, looking_scale, photo_pixels
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.features.store_comparison import compare

HOSTILE = "<img src=x onerror=\"alert('1')\"></td><script>&amp;"


def record(
    boxes: Any, *, hw: tuple[int, int] = (100, 120), classes: Any = None, scores: Any = None, image_id: str = "a"
) -> RegionRecord:
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    count = len(corners)
    return RegionRecord(
        image_id,
        *hw,
        corners,
        np.zeros((count, 4), np.float16),
        np.arange(count, dtype=np.uint16) if classes is None else np.array(classes, np.uint16),
        np.linspace(0.9, 0.5, count).astype(np.float32) if scores is None else np.array(scores, np.float32),
    )


def bare(boxes: Any, hw: tuple[int, int] = (100, 120), **options: Any) -> np.ndarray:
    """Boxes without labels on black."""
    one = record(boxes, hw=hw)
    named = {"labels": [""] * one.num_regions, "class_ids": one.class_ids, "scores": one.class_scores}
    return draw_regions(np.zeros((*hw, 3), np.uint8), one.boxes, **{**named, **options})


def span(mask: np.ndarray, axis: int) -> tuple[int, int]:
    """First and last place along an axis where something is."""
    places = np.flatnonzero(mask.any(axis=1 - axis))
    return int(places[0]), int(places[-1])


def bgr(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (5, 3, 1)]


@pytest.mark.parametrize(
    "box, columns, rows",
    [
        ((20, 30, 60, 70), (20, 59), (30, 69)),  # the pixels that the box covers, its last edge not included
        ((20.4, 29.6, 60.4, 70.4), (20, 59), (30, 69)),
        ((50, 50, 51, 51), (50, 50), (50, 50)),
        ((50, 50, 50, 50), (50, 50), (50, 50)),  # a box of nothing is still seen
        ((0, 0, 120, 100), (0, 119), (0, 99)),
        ((120, 100, 120, 100), (119, 119), (99, 99)),
        ((-9, -9, 400, 400), (0, 119), (0, 99)),
    ],
)
def test_a_line_lies_on_the_edges_of_its_box(box: Any, columns: tuple[int, int], rows: tuple[int, int]) -> None:
    ours = (bare([box]) == bgr(PALETTE[0])).all(axis=2)
    assert (span(ours, 1), span(ours, 0)) == (columns, rows)
    if columns[1] - columns[0] > 10:
        assert not ours[(rows[0] + rows[1]) // 2, (columns[0] + columns[1]) // 2]  # a frame, not a block


def test_a_scaled_picture_has_its_boxes_where_the_photo_has_them() -> None:
    ours = (bare([(10.25, 20, 30, 40.5)], scale=4.0) == bgr(PALETTE[0])).all(axis=2)
    assert ours.shape == (400, 480) and (span(ours, 1), span(ours, 0)) == ((41, 119), (80, 161))
    assert bare([], scale=0.5).shape == (50, 60, 3)
    for wrong in (0.0, -1.0, float("nan"), 1e6):
        refused("gives a picture of 1 to 400,000,000 pixels", bare, [], scale=wrong)
    assert [looking_scale(hw) for hw in ((480, 640), (10, 100), (1, 1))] == [1.0, 4.0, 480.0]
    assert looking_scale((3000, 4000), largest=480) == 0.12


def test_the_strongest_lie_on_top_and_the_weakest_are_left_out() -> None:
    boxes, scores = [(10, 10, 50, 50)] * 3, [0.2, 0.9, 0.5]
    assert bare(boxes, scores=scores)[10, 30].tolist() == bgr(PALETTE[1])
    one = bare([(10, 10, 30, 30), (60, 60, 90, 90)], scores=[0.1, 0.2], max_regions=1)
    assert not one[:50, :50].any() and one[60, 70].any()
    assert not bare(boxes, max_regions=0).any()
    refused("max_regions must be at least 0", bare, boxes, max_regions=-1)


@pytest.mark.parametrize("hw", [(1, 1), (8, 300), (60, 90), (480, 640), (900, 60)])
def test_labels_stay_in_the_picture_and_leave_most_of_it_to_see(hw: tuple[int, int]) -> None:
    height, width = hw
    corners = [(width * x, height * y, width * x + 1, height * y + 1) for x in (0, 0.5, 1) for y in (0, 0.5, 1)]
    many = record(corners, hw=hw)
    picture = many.draw(np.zeros((*hw, 3), np.uint8), classes=["a name that is far longer than the box"] * 9)
    assert picture.shape == (*hw, 3) and picture.dtype == np.uint8
    covered = (picture != 0).any(axis=2).mean()
    if min(hw) >= 60:
        assert 0.02 < covered < 0.6
    assert (covered > (bare(corners, hw) != 0).any(axis=2).mean()) == (height >= 60)  # too low for letters


def test_a_label_stands_above_its_box_on_a_ground_of_its_colour_as_far_as_the_font_goes() -> None:
    picture = record([(30, 60, 200, 150)], hw=(240, 320)).draw(np.zeros((240, 320, 3), np.uint8), classes=["cat"])
    above = picture[44:58, 31:60].reshape(-1, 3)
    assert (above == bgr(PALETTE[0])).all(axis=1).mean() > 0.5 and (above == 0).all(axis=1).any()  # and black letters
    assert not picture[:38].any()

    def drawn(name: str) -> bytes:
        return record([(30, 60, 200, 150)], hw=(240, 320)).draw(None, classes=[name]).tobytes()

    assert drawn("café") == drawn("cafe") and drawn("猫") == drawn("?") != drawn("cafe")
    assert drawn("a\u202eb") == drawn(r"a\u202eb")


def test_a_photo_may_be_a_path_its_bytes_or_pixels(tmp_path: Path) -> None:
    pixels = np.arange(100 * 120 * 3, dtype=np.uint32).astype(np.uint8).reshape(100, 120, 3)
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), pixels)
    one, before = record([(20, 30, 60, 70)]), pixels.copy()
    expected = one.draw(pixels)
    assert (pixels == before).all() and (expected[90, 100] == pixels[90, 100]).all()  # B, G, R in, B, G, R out
    for photo in (path, str(path), path.read_bytes(), Image.open(path), Image.open(path).convert("RGBA")):
        assert (one.draw(photo) == expected).all()
    grey = pixels[:, :, 0]
    for photo in (grey, grey[:, :, None]):
        assert (one.draw(photo) == one.draw(np.dstack([grey] * 3))).all()


def test_a_photo_that_says_it_is_turned_is_turned_as_the_record_was() -> None:
    def turned_photo(orientation: int) -> bytes:
        stored = Image.fromarray(np.dstack([np.tile(np.arange(60, dtype=np.uint8), (40, 1))] * 3))
        exif, data = Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        stored.save(data, "PNG", exif=exif)
        return data.getvalue()

    quarter, upside_down = turned_photo(6), turned_photo(3)
    turned, ignored = (record([], hw=hw).draw(quarter) for hw in ((60, 40), (40, 60)))
    assert turned[:, 0, 0].tolist() == list(range(60)) and ignored[0, :, 0].tolist() == list(range(60))
    # Upside down: the size does not tell, a store's settings do.
    for orientation, first in ((None, 59), ("applied", 59), ("ignored", 0)):
        assert photo_pixels(upside_down, (40, 60), exif_orientation=orientation)[0, 0, 0] == first
        assert record([], hw=(40, 60)).draw(upside_down, exif_orientation=orientation)[0, 0, 0] == first


@pytest.mark.parametrize(
    "photo, words",
    [
        (np.zeros((50, 60, 3), np.uint8), "60 x 50 pixels, the record 'a' is of a photo of 120 x 100"),
        (np.zeros((100, 120, 3), np.float32), r"\(height, width, 3\) uint8 in the order B, G, R.*float32"),
        (np.zeros((100, 120, 4), np.uint8), r"got \(100, 120, 4\) uint8"),
        (np.zeros((0, 120, 3), np.uint8), r"got \(0, 120, 3\)"),
        (b"", "is no image that OpenCV reads"),
        (b"GIF89a nothing", "is no image that OpenCV reads"),
    ],
)
def test_another_photo_is_one_clear_error(photo: Any, words: str) -> None:
    assert "\n" not in refused(words, record([]).draw, photo)


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009):
# full protanopia, deuteranopia and tritanopia, in linear RGB.
SEEN_BY = {
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("who", SEEN_BY)
def test_any_two_colours_differ_whoever_looks(who: str) -> None:
    """In CIELAB; 2.3 is what one just notices side by side."""

    def lab(colour: str) -> np.ndarray:
        rgb = np.array(bgr(colour)[::-1], np.float32) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(SEEN_BY[who]) @ linear, 0, 1)
        back = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
        return cv2.cvtColor(back.astype(np.float32)[None, None], cv2.COLOR_RGB2LAB)[0, 0]

    nearest = min(np.linalg.norm(lab(one) - lab(other)) for one, other in itertools.combinations(PALETTE, 2))
    assert nearest > 16


def test_classes_keep_their_colour_and_differ_on_one_photo() -> None:
    assert colours_by_class([[3]])[3] == colours_by_class([[3, 5], [8]])[3] == PALETTE[3]
    clash = colours_by_class([[3, 13, 23]])
    assert len(set(clash.values())) == 3 and clash[3] == PALETTE[3]


class Shown(HTMLParser):
    """Tags and text of any piece of HTML that we give a notebook, after a look at what is right of all of them."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()
        assert set(self.seen) <= {"div", "table", "tr", "th", "td", "span", "img", "svg"}
        assert "http" not in markup.replace("base64,", "")
        assert len(markup) < 200_000 and set(re.findall(r'src="(\w+:)', markup)) <= {"data:"}
        assert not re.search(r"[^-]color:#", markup)  # text has the colour of the page, light or dark

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_record_shows_itself() -> None:
    many = dataclasses.replace(
        make_record("a", 14, attributes=True, distribution="full", image_feature=True), height=3000, width=4000
    )
    said = "RegionRecord('a', 4000x3000, 14 regions x 8 float16, attributes, class distribution, image feature)"
    assert repr(many) == said
    tags = Shown(many._repr_html_())
    assert said in tags.text and tags.seen.count("tr") == 11 and "The best 10 of 14 regions" in tags.text
    picture = cv2.imdecode(np.frombuffer(many._repr_png_(), np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (360, 480, 3)
    top = make_record("t", distribution="top-k").class_distribution
    assert repr(top).startswith("TopKDistribution(class_ids=uint16 (3, 3), ") and "\n" not in repr(top)


def test_what_strangers_write_stays_text(tmp_path: Path) -> None:
    one = record([(1, 2, 3, 4)], image_id=HOSTILE + "\n\u202e", classes=[0])
    beside = regions_html("a", one, classes=[HOSTILE], photo=np.zeros((100, 120, 3), np.uint8))
    for markup in (one._repr_html_(), beside):
        tags = Shown(markup)
        assert tags.seen.count("img") == 1 and "script" in tags.text and "\n" not in repr(one)
    write_store(tmp_path / "s", [[make_record(HOSTILE)]])
    with FeatureStore(tmp_path / "s") as store:
        tags = Shown(store._repr_html_())
    assert "img" not in tags.seen and HOSTILE in tags.text


def test_a_store_shows_itself_and_draws_with_its_names(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[make_record(f"i{n}", seed=n) for n in range(7)], []])
    with FeatureStore(tmp_path / "s") as store:
        assert repr(store) == f"FeatureStore({str(tmp_path / 's')!r}, 7 records in 2 shards)"
        tags = Shown(store._repr_html_())
        assert "2: cat, dog" in tags.text and "7, 0 dead letters" in tags.text and "8 x float16" in tags.text
        assert "i4" in tags.text and "i5" not in tags.text and "store['i0'] is a record" in tags.text
        named = store["i0"].draw(None, classes=["cat", "dog"])
        assert (store.draw("i0", None) == named).all()
        refused("'nobody' is not in the store", store.draw, "nobody", None, error=KeyError)
        stream = repr(BatchStream(store, batch_size=2, rank=1, num_ranks=3))
        assert stream.endswith("BatchOrder(batches of 2, rank 1 of 3, at image 0 of 7 in epoch 0))")
        assert repr(store.get_batch(["i0"])).startswith("RegionBatch(image_ids=('i0',), image_hw=int32 (1, 2), ")
        for each in (store.manifest, store.fingerprint, store.meta("i0")):
            assert len(repr(each)) < 700 and "None" not in repr(each)
        absent = imported_fingerprint("example", {"classes": "absent", "attributes": "absent"})
        store.manifest = dataclasses.replace(store.manifest, fingerprint=absent)  # then regions have numbers
        assert (store.draw("i0", None) != named).any() and "no classes" in store._repr_html_()
    assert "7, 0 dead letters" in store._repr_html_()  # closed


def test_a_comparison_shows_itself(tmp_path: Path) -> None:
    write_store(tmp_path / "<b>left", [[make_record("a"), make_record("b")]])
    write_store(tmp_path / "right", [[make_record("a"), make_record("b", seed=9)]])
    with FeatureStore(tmp_path / "right") as opened:
        found = compare(str(tmp_path / "<b>left"), opened)
        assert found.num_common == 2 and opened["a"].num_regions == 3  # it stays open
    assert re.fullmatch(r"StoreComparison\(.*: \d differences?, 2 common images, .* regions\)", repr(found))
    tags = Shown(found._repr_html_())
    assert "They differ: " in tags.text and "images on both sides" in tags.text and "<b>left" in tags.text
    assert len(repr(found.worst[0])) < 800 and "None" not in repr(found.worst[0])
