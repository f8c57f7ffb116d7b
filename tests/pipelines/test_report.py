"""The report page: self-contained, escaped, bounded, and right about what it counts."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from html_page import HtmlPage

from roibeam.extraction.photos.image_ref import Failure
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.region_drawing import colours_by_class, text_colour_on
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.common.charts import DrawnRegion, bars_of_integers, photo_with_regions
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.extract import store_report as report
from roibeam.pipelines.extract.store_page import ReportFacts
from roibeam.pipelines.extract.store_report import photo_thumbnail, report_page, write_page

HOSTILE = "<img src=x onerror=\"alert('1')\"></title></style><script>&amp;"
FACTS = ReportFacts(
    store_name="photos-36", num_images=0, num_records=0, num_regions=0, num_failures=0, seconds=None,
    timed_images=0, details=(("detector", "toy"), ("weights", "toy.safetensors")), banner=None,
)  # fmt: skip


class FakeStore:
    """Records in memory; knows how often it was read."""

    def __init__(self, records: Iterable[RegionRecord]) -> None:
        self.records = {record.image_id: record for record in records}
        self.reads = 0

    def __len__(self) -> int:
        return len(self.records)

    def ids(self) -> Iterable[str]:
        return iter(self.records)

    def get(self, image_id: str, *, copy: bool) -> RegionRecord:
        self.reads += 1
        return self.records[image_id]


class Page(HtmlPage):
    def count(self, name: str) -> str:
        """The value of one cell of the counts table."""
        found = re.search(rf"<dt>{re.escape(name)}</dt><dd>([^<]*)</dd>", self.html)
        assert found is not None, f"no count called {name!r}"
        return found[1]


def record(
    image_id: str, num_regions: int = 3, *, height: int = 60, width: int = 80, class_id: int = 1
) -> RegionRecord:
    x1 = np.linspace(0, width / 2, num_regions, dtype=np.float32)
    zeros = np.zeros_like(x1)
    return RegionRecord(
        image_id=image_id, height=height, width=width,
        boxes=np.stack([x1, zeros, x1 + np.float32(width / 2), zeros + height], axis=1),
        features=np.zeros((num_regions, 4), np.float16), class_ids=np.full(num_regions, class_id, np.uint16),
        class_scores=np.linspace(0.9, 0.1, num_regions, dtype=np.float32),
        attribute_ids=np.zeros(num_regions, np.uint16), attribute_scores=np.full(num_regions, 0.5, np.float32),
    )  # fmt: skip


def jpeg(height: int = 60, width: int = 80) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), 90, np.uint8))[1].tobytes()


def write(
    folder: Path, store: FakeStore, failures: Sequence[Failure] = (), *, files: dict[str, bytes] | None = None,
    facts: dict[str, Any] | None = None, **options: Any,
) -> Page:  # fmt: skip
    """Writes a report whose photos are `files` (by id), else a grey 80x60 one for each id; `facts` are those that do
    not follow from store and failures."""

    def read_bytes(location: str) -> bytes:
        if files is None:
            return jpeg()
        if location not in files:
            raise FileNotFoundError(2, "No such file or directory", location)
        return files[location]

    counted = dataclasses.replace(
        FACTS, num_images=len(store) + len(failures), num_records=len(store),
        num_regions=sum(each.num_regions for each in store.records.values()), num_failures=len(failures),
    )  # fmt: skip
    options = {
        "class_names": ["cat", "dog"],
        "attribute_names": ["red"],
        "thumbnail_of": lambda image_id, image_hw: photo_thumbnail(image_id, image_hw, read_bytes),
    } | options
    page = report_page(dataclasses.replace(counted, **(facts or {})), records=store, failures=failures, **options)
    write_page(LocalFolder(folder), "report.html", page)
    return Page((folder / "report.html").read_text("utf-8"))


def test_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = write(tmp_path, FakeStore([record("a"), record("b")]))
    assert not [outside for outside in ("http:", "https:", "url(", "@import") if outside in page.html]
    assert not {"script", "link", "iframe", "object", "img", "use", "a"} & set(page.tags)
    names = ("src", "href", "srcset", "xlink:href", "data")
    references = [value for _, attributes in page.elements for name, value in attributes.items() if name in names]
    assert len(references) == 2 and all(str(value).startswith("data:image/jpeg;base64,") for value in references)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    failure = Failure(HOSTILE, HOSTILE, HOSTILE, HOSTILE, f"a\nb\0\u202e\udcff{HOSTILE}")
    store = FakeStore([record(HOSTILE), record("gone" + HOSTILE)])
    page = write(
        tmp_path, store, [failure], facts={"store_name": HOSTILE, "details": ((HOSTILE, HOSTILE),)},
        files={HOSTILE: jpeg()}, class_names=[HOSTILE, HOSTILE], attribute_names=[HOSTILE],
    )  # fmt: skip
    assert "script" not in page.tags and "img" not in page.tags
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) >= 8  # title, heading, fact, class, attribute, reason, failed id, caption
    # What would reorder or end the text is spelled out.
    assert r"a\nb\x00\u202e\udcff" in page.text


def test_counts(tmp_path: Path) -> None:
    store = FakeStore([record("a", 3), record("b", 5), record("c", 0)])
    failures = [Failure(f"f{i}", "x", "decode", "truncated", f"detail {i}") for i in range(7)]
    failures.append(Failure("g", "x", "read", "not found", "no such file"))
    page = write(tmp_path, store, failures, facts={"seconds": 5.5, "timed_images": 11})
    counts = [page.count(name) for name in ("images", "records", "regions", "failures", "images/s")]
    assert counts == ["11", "3", "8", "8", "2"]
    assert page.count("regions per image") == "2.7" and page.count("fewest to most") == "0 to 5"
    assert "<title>3: 1 image</title>" in page.html  # one image has 3 regions
    assert "<title>0.90 to 0.95: 2 regions</title>" in page.html  # the best of "a" and of "b"
    bars = re.findall(r'<th scope="row">(.*?)</th>.*?<td class="number">(.*?)</td>', page.html)
    assert bars == [("dog", "8"), ("red", "8")]
    reasons = re.findall(r'<th scope="rowgroup".*?>(.*?) <b>(.*?)</b>', page.html)
    assert reasons == [("truncated", "7"), ("not found", "1")]
    assert "detail 4" in page.text and "detail 5" not in page.text and "and 2 more" in page.text
    assert "Incomplete." not in page.text and "Random weights." not in page.text


def test_regions_are_drawn_in_photo_pixels_with_their_names(tmp_path: Path) -> None:
    page = write(tmp_path, FakeStore([record("a", 12)]))
    # Twelve boxes of half the width, 3.6 pixels apart: each fourth one shares less than half with those before it.
    assert page.html.count('class="box"') == 3
    assert 'viewBox="0 0 80 60"' in page.html
    assert '<rect class="box" x="0" y="0" width="40" height="60"' in page.html
    assert ">red dog 0.90<" in page.html
    assert "80 &times; 60 px" in page.html and "12 regions" in page.text


def test_no_more_than_ten_regions_are_drawn(tmp_path: Path) -> None:
    many = record("a", 12)
    apart = np.stack([np.arange(12) * 6, np.zeros(12), np.arange(12) * 6 + 5, np.full(12, 60)], axis=1)
    page = write(tmp_path, FakeStore([dataclasses.replace(many, boxes=apart.astype(np.float32))]))
    assert page.html.count('class="box"') == 10
    assert ">red dog 0.90<" in page.html and ">red dog 0.10<" not in page.html


@pytest.mark.parametrize(
    "data, words",
    [
        (None, "No such file or directory"),
        (b"", "empty file"),
        (jpeg()[:300], "truncated"),
        (jpeg(height=61), "80 x 61 pixels now and was 80 x 60"),  # boxes would lie in the wrong places
    ],
)
def test_photo_that_cannot_be_shown_gets_a_placeholder(tmp_path: Path, data: bytes | None, words: str) -> None:
    page = write(tmp_path, FakeStore([record("a")]), files={} if data is None else {"a": data})
    assert "Photo not shown: " in page.text and words in page.text
    assert "image" not in page.tags


UNKNOWN = photo_thumbnail(None, (60, 80), lambda location: jpeg())


@pytest.mark.parametrize(
    "records, options, words",
    [
        # An attribute without a name would only be noise on the photo.
        ([record("a", 2, class_id=700)], {"class_names": ["cat"], "attribute_names": None}, ["class 700 0.90"]),
        ([record("a")], {"thumbnail_of": lambda *_: UNKNOWN}, ["where it was read from is not known"]),
        ([], {}, ["No records.", "None."]),
        ([record("a")], {"facts": {"num_images": 3}}, ["2 images gave neither a record nor a failure"]),
    ],
)
def test_what_is_not_there_is_said(
    tmp_path: Path, records: list[RegionRecord], options: dict[str, Any], words: list[str]
) -> None:
    page = write(tmp_path, FakeStore(records), **options)
    assert not [each for each in words if each not in page.text]
    assert page.count("records") == str(len(records)) and ("figure" in page.tags) == bool(records)


def test_the_time_is_that_of_the_images_that_took_it(tmp_path: Path) -> None:
    """A run that did a part tells of its part: its time over all images would be no rate."""
    store = FakeStore([record("a"), record("b")])
    whole = write(tmp_path, store, facts={"seconds": 4.0, "timed_images": 2})
    assert (whole.count("time"), whole.count("images/s")) == ("4.0 s", "0.5")
    part = write(tmp_path, store, facts={"seconds": 4.0, "timed_images": 1})
    assert (part.count("time of 1"), part.count("images/s")) == ("4.0 s", "0.25")


def test_charts_have_titles_and_a_banner_stands_before_the_counts(tmp_path: Path) -> None:
    banner = {"banner": Banner("Careful.", "All <b> drawn.")}
    page = write(tmp_path, FakeStore([record("a", 3), record("b", 3)]), facts=banner)
    assert 0 < page.text.index("Careful. All <b> drawn.") < page.text.index("regions per image")
    for title in ("images, up to 2", "regions in an image", "score of the best class, 0 to 1"):
        assert title in page.text
    assert re.search(r"regions, up to \d", page.text)


@pytest.mark.parametrize("height, width", [(1, 1), (200, 4000), (3000, 200)])
def test_extreme_shapes(tmp_path: Path, height: int, width: int) -> None:
    store = FakeStore([record("a", 10, height=height, width=width)])
    page = write(tmp_path, store, files={"a": jpeg(height, width)})
    (frame,) = re.findall(r'class="photo" viewBox="(.*?)"', page.html)
    left, top, frame_width, frame_height = map(float, frame.split())
    assert frame_width / frame_height == pytest.approx(4 / 3, rel=1e-3)
    assert left <= 0 and top <= 0 and left + frame_width >= width and top + frame_height >= height
    assert "nan" not in page.html.lower().split("base64,")[0]


def test_endless_names_are_cut(tmp_path: Path) -> None:
    store = FakeStore([record("a")])
    long = "W" * 40_000
    failures = [Failure("f", long, "read", long, long)]
    page = write(tmp_path, store, failures, class_names=[long, long], attribute_names=[long])
    assert len(page.html) < 60_000


def test_number_of_photos_is_bounded_and_they_are_spread_over_the_store(tmp_path: Path) -> None:
    store = FakeStore(record(f"{i:03d}") for i in range(100))
    page = write(tmp_path, store, max_photos=4)
    assert re.findall(r'class="id" title="(\d+)"', page.html) == ["012", "037", "062", "087"]
    assert "4 of 100, evenly spread over the store" in page.text
    page = write(tmp_path, store)
    assert page.tags.count("figure") == 24


def test_thumbnails_keep_the_page_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    coarse = cv2.resize(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8), (1600, 1200))
    data = cv2.imencode(".jpg", coarse)[1].tobytes()
    store = FakeStore(record(f"{i}", height=1200, width=1600) for i in range(24))
    write(tmp_path, store, files={f"{i}": data for i in range(24)})
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


def test_large_stores_are_sampled_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SAMPLED_RECORDS", 50)
    store = FakeStore(record(f"{i:03d}", 1 + i % 2) for i in range(500))
    page = write(tmp_path, store, max_photos=2)
    assert store.reads == 50 + 2
    assert "counted on 50 of 500 records" in page.text
    assert page.count("records") == "500" and "fewest to most" not in page.text


def test_same_input_gives_same_bytes_and_no_file_is_left_aside(tmp_path: Path) -> None:
    store = FakeStore(record(f"{i}", i, class_id=i) for i in range(6))
    failures = [Failure("f", "x", "read", reason, "") for reason in ("b", "a", "b", "c")]
    write(tmp_path, store, failures)
    first = (tmp_path / "report.html").read_bytes()
    write(tmp_path, store, failures)
    assert (tmp_path / "report.html").read_bytes() == first
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_failed_write_leaves_the_old_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    store = FakeStore([record("a")])
    with pytest.raises(ValueError):
        write(tmp_path, store, facts={"details": ((1, 2, 3),)})  # no pair
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_integer_bars_hold_every_count() -> None:
    for counts in ({0: 3}, {36: 7}, {10: 1, 100: 2}, {0: 1, 65535: 1}, {k: k for k in range(1, 400)}):
        bars = bars_of_integers(counts)
        assert 11 <= len(bars) <= 36
        assert sum(bar.count for bar in bars) == sum(counts.values())
        assert bars[0].low <= min(counts) and max(counts) < bars[-1].high


def test_classes_of_one_photo_have_different_colours_with_readable_text() -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    classes = [range(start, start + 10) for start in range(0, 90, 3)]
    photos = [[DrawnRegion(box, class_id, "", 1.0) for class_id in each] for each in classes]
    colours = colours_by_class([region.class_id for region in regions] for regions in photos)
    for regions in photos:
        assert len({colours[region.class_id] for region in regions}) == 10
    for colour in colours.values():
        assert _contrast(colour, text_colour_on(colour)) >= 4.5


def test_labels_do_not_cover_each_other_while_there_is_room() -> None:
    regions = [DrawnRegion((10, 10, 200, 200), 0, f"name {i}", 0.5) for i in range(10)]  # ten equal boxes
    svg = photo_with_regions(jpeg(), regions, image_hw=(300, 400), colours={0: "#f3c300"}, label="")
    places = [tuple(map(float, each)) for each in re.findall(
        r'</title><rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', svg
    )]  # fmt: skip
    assert len(places) == 10
    for i, (x, y, width, height) in enumerate(places):
        assert x >= 0 and y >= 0 and x + width <= 400.01 and y + height <= 300.01
        for other_x, other_y, other_width, other_height in places[:i]:
            across = min(x + width, other_x + other_width) - max(x, other_x)
            down = min(y + height, other_y + other_height) - max(y, other_y)
            assert min(across, down) < 0.05  # numbers are written with two digits


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)
