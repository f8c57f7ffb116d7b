"""The toy web: its labels are true, its pictures have the sizes that the rule of 300 pixels asks about, its WARC files
hold its pages, and equal seeds give equal webs."""

import csv
import gzip
import json
import shutil
from pathlib import Path
from urllib.request import urlopen

import cv2
import numpy as np
import pytest
from tiny_commands import Cli, ok
from toy_web_server import serve_toy_web

from roibeam.pipelines.toyworld.picture import describe
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption
from roibeam.pipelines.toyworld.web_texts import COPIES, FIRST_WEB_SCENE, KINDS, TAILS, plan_pages
from roibeam.pipelines.toyworld.write_web import ToyWeb, judge, mark_shared, normal_text, read_truth

SEED, NUM_PAGES = 5, 60


def write(folder: Path, workers: int) -> Path:
    (folder / "world").mkdir(parents=True)
    web = ToyWeb(str(folder / "web"), folder / "world", SEED, 80, NUM_PAGES, 8780, 6)
    web.check()
    assert web.write(workers).num_new
    return folder / "web"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("web"), workers=1)


def test_texts_called_good_are_true_of_the_picture_and_those_called_wrong_are_not(web: Path) -> None:
    checked = {True: 0, False: 0}
    for page in read_truth(web):
        if page["kind"] in ("good", "mixed", "copied", "wrong", "swapped"):
            scene = describe(generate(SEED, page["picture"]["id"]))
            known = KnownScene(scene.scene, scene.relations)
            for text in page["texts"]:
                if text["why"] in ("", "wrong", "swapped"):
                    claims = [parse_caption(sentence) for sentence in sentences(text["text"])]
                    truths = [claim.is_true_of(known) for claim in claims]
                    assert all(truths) if text["good"] else not all(truths), text
                    checked[text["good"]] += 1
    assert min(checked.values()) > 10


def sentences(text: str) -> list[str]:
    """The toy world's sentences in a text that `page_texts` dressed."""
    plain = (text[0].lower() + text[1:]).rstrip(".")
    for tail in TAILS:
        plain = plain.removesuffix(tail)
    for glue in (", and ", " with ", ""):
        parts = plain.split(glue) if glue else plain.split(" next to ")
        try:
            for part in parts:
                parse_caption(part)
        except ValueError:
            continue
        return parts
    raise AssertionError(text)


def test_good_pictures_are_over_300_pixels_both_ways_and_small_ones_are_not(web: Path) -> None:
    edges = []
    for page in read_truth(web):
        picture = page["picture"]
        pixels = cv2.imread(str(web / "site" / picture["file"]))
        assert pixels.shape[:2] == (picture["height"], picture["width"])
        edges += pixels.shape[:2]
        assert (min(pixels.shape[:2]) <= 300) == (page["kind"] == "small")
        if page["good"]:
            assert picture["natural"] and page["language"] == "en" and any(text["good"] for text in page["texts"])
    assert min(edges) >= 100 and max(edges) <= 800


def test_the_warc_file_holds_every_page_in_the_charset_that_it_names(web: Path) -> None:
    data = gzip.decompress((web / "warc" / "part-00000.warc.gz").read_bytes())
    records = data.split(b"WARC/1.0\r\nWARC-Type: ")[1:]
    assert len(records) == NUM_PAGES + 1  # and the file's own
    for record, page in zip(records[1:], read_truth(web), strict=True):
        head, http, body = record.split(b"\r\n\r\n", 2)
        body = body.removesuffix(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in f"WARC-Type: {head.decode()}".splitlines())
        assert fields["WARC-Target-URI"] == page["page"] and fields["WARC-Type"] == "response"
        assert int(fields["Content-Length"]) == len(http) + 4 + len(body)
        assert body == (web / "site" / page["file"]).read_bytes()
        html = body.decode(page["charset"])
        assert f'<meta charset="{page["charset"]}">' in html and any(url in html for url in page["picture"]["urls"])


@pytest.mark.slow
def test_a_web_depends_on_its_seed_alone_not_on_the_number_of_processes(web: Path, tmp_path: Path) -> None:
    other = write(tmp_path, workers=2)
    assert json.loads((other / "web.json").read_text()) == json.loads((web / "web.json").read_text())
    files = {path.relative_to(web) for path in web.rglob("*") if path.is_file()}
    assert files == {path.relative_to(other) for path in other.rglob("*") if path.is_file()}
    assert all((web / name).read_bytes() == (other / name).read_bytes() for name in files)


def test_labels_name_files_that_are_there_and_a_server_gives_them(web: Path) -> None:
    with open(web / "images.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {"natural", "not"}
    assert all((web / row["image"]).is_file() for row in rows)
    with serve_toy_web(web) as (port, requests):
        path = rows[0]["image"].removeprefix("site")
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            assert answer.read() == (web / rows[0]["image"]).read_bytes()
        assert requests[path] == 1


def test_no_warning_says_that_its_pictures_are_not_drawn(web: Path, tmp_path: Path, roibeam: Cli) -> None:
    """Listed by its own file, and in a folder above two webs; with a photo of elsewhere there is one."""
    first, second = [path.relative_to(web) for path in sorted((web / "site").rglob("*.jpg"))[:2]]
    (web / "few.tsv").write_text(f"good\t{first}\ngood\t{second}\n")
    for name, file in (("a", first), ("b", second)):
        (tmp_path / "webs" / name).mkdir(parents=True)
        for copied in ("web.json", file):
            shutil.copy(web / copied, tmp_path / "webs" / name)
    shutil.copytree(tmp_path / "webs", tmp_path / "mixed")
    (tmp_path / "mixed" / "b" / "web.json").unlink()
    warned = []
    for source in (web / "few.tsv", tmp_path / "webs", tmp_path / "mixed"):
        out = tmp_path / f"store-{source.stem}"
        done = ok(roibeam("extract", source, out, "--detector", "toy", "--device", "cpu", "--json"))
        warned.append(json.loads(done.out.splitlines()[-1])["warning"] is not None)
        page = (out / "report.html").read_text("utf-8")
        assert ("The toy detector knows the drawn world only" in page) == warned[-1]
    assert warned == [False, False, True]
    copy = tmp_path / "copied"
    assert roibeam("store", "copy", tmp_path / "store-webs", copy).code == 0
    shutil.rmtree(tmp_path / "store-webs")
    assert "drawn world only" not in roibeam("store", "info", copy).out


def test_a_plan_has_every_kind_of_page_and_copies_share_a_scene() -> None:
    pages = list(plan_pages(1, 3000, (7, 8)))
    counts = {kind: sum(page.kind == kind for page in pages) for kind in KINDS}
    assert all(0.5 * share < counts[kind] / 30 < 1.5 * share for kind, share in KINDS.items())
    copied = [page for page in pages if page.kind == "copied"]
    for first in range(0, len(copied) - COPIES, COPIES):
        assert len({page.scene for page in copied[first : first + COPIES]}) == 1
    assert {page.scene for page in pages if page.kind == "evaluation"} == {7, 8}
    assert all(page.scene >= FIRST_WEB_SCENE for page in pages if page.kind != "evaluation")


def test_a_collection_is_judged_by_what_it_kept_and_what_it_missed(web: Path) -> None:
    pages = list(read_truth(web))
    right = {
        page["picture"]["id"]: (page["picture"]["urls"][0], text["text"].upper() + " !")
        for page in pages if page["good"] for text in page["texts"] if text["good"]
    }  # fmt: skip
    whole = judge(pages, right.values())
    assert (whole.precision, whole.recall, whole.missed) == (1.0, 1.0, {})
    spam = next(page for page in pages if page["kind"] == "spam")
    kept = [*list(right.values())[1:], (spam["picture"]["urls"][0], spam["texts"][0]["text"]), ("http://a/b", "c")]
    some = judge(pages, kept)
    assert some.wrong == {"spam": 1, "no main picture": 1} and some.found == len(right) - 1
    assert some.precision == pytest.approx((len(right) - 1) / (len(right) + 1)) and sum(some.missed.values()) == 1


def test_a_text_of_more_than_ten_pictures_is_no_good_one() -> None:
    def page(number: int, text: str) -> dict[str, object]:
        texts = [{"source": "alt", "text": text, "good": True, "why": ""}]
        return {"good": True, "kind": "good", "picture": {"id": number}, "texts": texts}

    pages = [page(number, "A tree.") for number in range(11)] + [page(20 + number, "a hat") for number in range(10)]
    mark_shared(pages)
    assert [each["good"] for each in pages] == [False] * 11 + [True] * 10
    assert normal_text("A  tree, (red)!") == "a tree red"


def test_unnatural_pictures_are_of_several_sorts(web: Path) -> None:
    found = {page["picture"]["sort"] for page in read_truth(web) if page["kind"] == "unnatural"}
    assert len(found) >= 2 and "" not in found
    assert np.all([page["picture"]["natural"] for page in read_truth(web) if page["kind"] != "unnatural"])
