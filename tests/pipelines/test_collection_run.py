"""`roibeam collect run` whole: a small site on loopback in, pairs out; every worker count gives the same."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_commands import Cli, command, ok, refused
from toy_web_server import serve_toy_web
from warc_files import write_warc

from roibeam.pipelines.collection.aggregation import DroppedPair, aggregate, normalised
from roibeam.pipelines.collection.pairs import CandidateText, FetchedPicture, Pair, Reason, TextSource, pair_id
from roibeam.pipelines.collection.picture_job import nsfw_scores
from roibeam.pipelines.collection.request import need_packages
from roibeam.pipelines.collection.same_images import EvaluationImages, groups_of_same, is_distinctive, perceptual_hash
from roibeam.pipelines.collection.thresholds import AggregationThresholds, PictureThresholds
from roibeam.pipelines.data.datasets.photo_folders import DRAWN_WORLD, WEB_FORMAT, are_toy_photos, world_of
from roibeam.pipelines.data.download.url_list import UrlList
from roibeam.pipelines.data.source_kinds import open_source

BLOCK = "The dog is an animal that people keep at home, and it likes to run in the park every day."
TEXT = f"<p>{BLOCK}</p>"
TEXTS = {
    "brown": "a brown dog running in the park",
    "white": "a white cat sleeping on the old chair",
    "bird": "<script>alert(1)</script>a small bird sits on the branch & sings",
    "tiny": "a tiny picture of a green boat",
    "gone": "a picture that nobody can find again",
    "optout": "a horse on the field that must not be taken",
    "inside": "a machine inside the private network",
    "moved": "a picture that moved into the private network",
    "forbidden": "a boat on the lake that robots may not ask for",
}


def photo(seed: int, height: int = 320, width: int = 400) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 255, (8, 10, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


class Site(NamedTuple):
    """Folders of pages and of a WARC of them, the address at which their pictures are, and what was asked for there."""

    pages: Path
    warc: Path
    address: str
    requests: Counter[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    web = tmp_path_factory.mktemp("web")
    for name, pixels in (
        ("img/brown.jpg", photo(0)), ("img/white.jpg", photo(1)), ("img/bird.jpg", photo(2)),
        ("img/copy.png", cv2.resize(photo(0), (500, 400))), ("img/tiny.jpg", photo(7, 300, 400)),
        ("optout/horse.jpg", photo(8)), ("forbidden/a.jpg", photo(9)),
    ):  # fmt: skip
        (web / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(web / "site" / name), pixels)
    (web / "site" / "robots.txt").write_text("User-agent: *\nDisallow: /forbidden/\n")
    with serve_toy_web(web) as (port, requests):
        address = f"http://127.0.0.1:{port}/"
        shown = {
            "brown": "img/brown.jpg", "white": "img/white.jpg", "bird": "img/bird.jpg", "tiny": "img/tiny.jpg",
            "gone": "img/gone.jpg", "optout": "optout/horse.jpg", "inside": "http://169.254.169.254/latest/a.jpg",
            "moved": "moved-inside/a.jpg", "forbidden": "forbidden/a.jpg",
        }  # fmt: skip
        pages = web / "pages"
        pages.mkdir()
        for name, image in shown.items():
            url = image if "://" in image else address + image
            alt = TEXTS[name].replace("<", "&lt;")
            (pages / f"{name}.html").write_text(f'<main>{TEXT}<img src="{url}" alt="{alt}"></main>')
        again = f'<main>{TEXT}<img src="{address}img/copy.png" title="one dog in the park"></main>'
        (pages / "again\x07\n.html").write_text(again)
        (pages / "german.html").write_text("<p>Der Hund ist ein Tier, das die Menschen gern zu Hause halten.</p>")
        (web / "warc").mkdir()
        found = [(f"http://pages.invalid/{path.name}", path.read_bytes()) for path in sorted(pages.glob("[b-z]*.html"))]
        (web / "warc" / "a.warc.gz").write_bytes(write_warc(found, packed=True))
        yield Site(pages, web / "warc", address, requests)


ALLOWED = ("--no-nsfw", "--allow-private", "127.0.0.1", "--set", "text.max_unknown_share=0.5")


@pytest.fixture(scope="module")
def collected(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collected") / "out"
    command("collect", "run", site.pages, out, *ALLOWED)
    return out


def test_each_page_is_a_pair_or_has_its_reason(collected: Path) -> None:
    summary = json.loads((collected / "collection.json").read_text())
    assert summary["dropped"] == {
        "pages": {}, "language": {"other language": 1}, "image": {}, "text": {},
        "fetch": {"image opted out": 2, "not fetched": 3}, "picture": {"too small": 1}, "score": {},
        "aggregation": {"same image": 1},
    }  # fmt: skip
    assert summary["dropped_texts"]["markup"] == 1
    pairs = pq.read_table(collected / "pairs.parquet").to_pylist()
    assert {pair["caption"] for pair in pairs} == {TEXTS["brown"], TEXTS["white"], BLOCK}
    fetched = pq.read_table(collected / "work" / "fetched" / "dead_letters.parquet").to_pylist()
    reasons = {letter["location"].split("/")[-2]: letter["reason"] for letter in fetched}
    assert reasons["latest"] == reasons["moved-inside"] == "private address"  # a redirect leads nowhere else either
    assert reasons["forbidden"] == "robots.txt" and reasons["optout"] == "opted out"
    (brown,) = (pair for pair in pairs if "brown" in pair["caption"])
    assert brown["image_url"].endswith("copy.png")  # the larger of two copies
    assert (brown["num_pages"], brown["text_source"]) == (2, "alt")
    assert summary["notes"][0].startswith("step off: porn")


def test_the_lists_are_read_by_download_and_extract(collected: Path) -> None:
    ids = {pair["pair_id"] for pair in pq.read_table(collected / "pairs.parquet").to_pylist()}
    source = open_source(str(collected / "local.tsv"))
    assert {image.image_id.rpartition("/")[2] for image in source.images} == ids
    assert all((collected / "photos" / f"{one[:2]}").is_dir() for one in ids)
    assert UrlList(str(collected / "pairs.tsv")).num_urls == len(ids)


def test_the_report_escapes_whatever_pages_say(collected: Path) -> None:
    page = (collected / "report.html").read_text("utf-8")
    assert "<script" not in page and "\x07" not in page and "alert(1)" in page
    assert "default-src 'none'" in page and 'src="http' not in page  # it asks for nothing
    assert page.count("data:image/jpeg;base64,") >= 2


def test_a_rerun_does_nothing_again_and_ids_stay(site: Site, collected: Path, roibeam: Cli) -> None:
    before = {path: path.stat().st_mtime_ns for path in (collected / "work").rglob("part-*")}
    lists = (collected / "local.tsv").read_bytes()
    assert roibeam("collect", "run", site.pages, collected, *ALLOWED).code == 0
    assert {path: path.stat().st_mtime_ns for path in (collected / "work").rglob("part-*")} == before
    assert (collected / "local.tsv").read_bytes() == lists
    for pages, options, words in (
        (site.pages, ("--set", "text.min_words=4"), "with other thresholds of page, language, image, text or size"),
        (site.warc, (), "holds a collection of other pages"),
        (site.pages, ("--images-from", collected), "is the folder to write into"),
        (site.pages, ("--images-from", site.warc), "holds no collection with fetched"),
    ):
        assert words in refused(roibeam("collect", "run", pages, collected, *ALLOWED, *options))


def test_images_of_an_earlier_collection_are_asked_of_no_server_again(
    site: Site, collected: Path, tmp_path: Path, roibeam: Cli
) -> None:
    """A page came, one went, rules changed and one file was lost: all images are there after three requests."""
    pages, earlier = tmp_path / "pages", tmp_path / "earlier"
    shutil.copytree(site.pages, pages)
    shutil.copytree(collected, earlier)
    (pages / "gone.html").unlink()
    new = f'<main>{TEXT}<img src="{site.address}img/white.jpg?again" alt="a white cat on a chair at home"></main>'
    (pages / "new.html").write_text(new)
    stored = sorted((earlier / "work" / "fetched" / "images").rglob("*.*"))
    stored[0].unlink()
    words = (*ALLOWED, "--set", "text.min_words=4", "--set", "picture.larger_than_px=200")
    asked = site.requests
    before = Counter(asked)
    done = roibeam("collect", "run", pages, tmp_path / "out", *words, "--images-from", earlier)
    assert done.code == 0 and f"{len(stored) - 1} images taken from {earlier}" in done.err
    fetched = Counter({path: count for path, count in (asked - before).items() if path != "/robots.txt"})
    assert fetched.total() == 3  # the new one, the lost one, and the one that was too small
    assert fetched["/img/white.jpg?again"] == fetched["/img/tiny.jpg"] == 1
    taken = json.loads((tmp_path / "out" / "collection.json").read_text())
    assert taken["pairs"] == 4 and taken["images"] == 10
    assert taken["dropped"]["fetch"] == {"image opted out": 2, "not fetched": 2}
    before = Counter(asked)
    assert roibeam("collect", "run", pages, tmp_path / "out", *words, "--images-from", earlier).code == 0
    assert asked == before


def test_what_comes_from_a_toy_web_is_called_drawn(site: Site, collected: Path, tmp_path: Path, roibeam: Cli) -> None:
    """And what is downloaded by the collection's list; else the toy detector would warn of its own world."""
    assert DRAWN_WORLD not in json.loads((collected / "collection.json").read_text())
    shutil.copytree(site.pages, tmp_path / "web" / "site")
    (tmp_path / "web" / "web.json").write_text(json.dumps({"format": WEB_FORMAT}))
    out, again = tmp_path / "pairs", tmp_path / "again"
    assert roibeam("collect", "run", tmp_path / "web" / "site", out, *ALLOWED).code == 0
    assert roibeam("download", out / "pairs.tsv", again, "--allow-private", "127.0.0.1").code == 0
    for folder in (out, again):
        photos = [image.location for image in open_source(str(folder / "local.tsv")).images]
        assert are_toy_photos(photos) and {world_of(photo) for photo in photos} == {folder}


def test_without_the_extra_the_answer_says_what_to_install() -> None:
    words = r"no_such_reader \(pages\), not installed here: pip install 'roibeam\[collect\]'"
    with pytest.raises(ValueError, match=words):
        need_packages({"no_such_reader": "pages", "json": "nothing"})


def test_racy_pictures_go_unless_a_collection_was_begun_without(site: Site, tmp_path: Path, roibeam: Cli) -> None:
    """The paper discards them; they stayed. A collection of then goes on as it was, and says so."""
    limits = PictureThresholds()
    assert [limits.is_unfit(*scores) for scores in ((0.0, 0.55), (0.0, 0.8), (0.5, 0.0))] == [False, True, True]
    words = ("collect", "run", site.warc, tmp_path / "out", *ALLOWED[1:])
    assert roibeam(*words).code == 0
    state = tmp_path / "out" / "work" / "state.json"
    begun = json.loads(state.read_text())
    assert json.loads((tmp_path / "out" / "collection.json").read_text())["notes"][0].startswith("step off: natural")
    state.write_text(json.dumps({key: value for key, value in begun.items() if key not in ("sha256", "drops_racy")}))
    again = ok(roibeam(*words))
    assert "racy pictures stay, as when this collection was begun" in again.err + again.out
    part = next((tmp_path / "out" / "work" / "pictures").rglob("*.json"))
    assert '"max_racy": 1.01' in part.read_text().replace("\\", "")
    chosen = roibeam(*words, "--set", "picture.max_racy=0.6")
    assert chosen.code == 0 and "racy pictures stay" not in chosen.err + chosen.out


def test_without_nudenet_the_collection_says_that_such_pictures_stay(
    site: Site, tmp_path: Path, roibeam: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused; a threshold without an effect still is."""
    monkeypatch.setitem(sys.modules, "nudenet", None)  # as Python has it of a package that is not there
    words = ("collect", "run", site.warc, tmp_path / "out", *ALLOWED[1:])
    done = ok(roibeam(*words))
    (note, *_) = json.loads((tmp_path / "out" / "collection.json").read_text())["notes"]
    assert note.startswith("step off: porn and racy pictures, which stay in the collection (nudenet is not installed")
    assert note in done.err + done.out and "which stay in the collection" in (tmp_path / "out/report.html").read_text()
    without = refused(roibeam(*words, "--set", "picture.max_racy=0.6"))
    assert "nudenet (porn and racy pictures), not installed here" in without
    off = refused(roibeam(*words, "--no-nsfw", "--set", "picture.max_nsfw=0.6"))
    assert "is of a step that --no-nsfw leaves out" in off


def test_a_dry_run_writes_nothing(site: Site, tmp_path: Path, roibeam: Cli) -> None:
    done = ok(roibeam("collect", "run", site.pages, tmp_path / "out", "--no-nsfw", "--dry-run"))
    assert "11 files of pages" in done.out and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_workers_and_runners_give_what_one_process_gives(site: Site, tmp_path: Path, roibeam: Cli) -> None:
    """From WARC too: the bytes of the pages are the same, so are the pairs."""
    digests = set()
    for name, words in (("one", ()), ("two", ("--workers", "2")), ("portable", ("--runner", "portable"))):
        assert roibeam("collect", "run", site.warc, tmp_path / name, *ALLOWED, *words).code == 0
        digests.add(json.loads((tmp_path / name / "collection.json").read_text())["digest"])
    assert len(digests) == 1


@pytest.mark.slow  # test_each_page_is_a_pair_or_has_its_reason has one such address
def test_private_addresses_are_refused_unless_named(site: Site, tmp_path: Path, roibeam: Cli) -> None:
    done = ok(roibeam("collect", "run", site.pages, tmp_path / "out", "--no-nsfw", "--json"))
    summary = json.loads(done.out.splitlines()[-1])
    assert summary["pairs"] == 0 and summary["dropped"]["fetch"] == {"not fetched": 10}


def test_evaluation_images_are_known_by_pixels_and_by_name(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "test.png"), photo(3))
    (tmp_path / "held.txt").write_text("000000000042.jpg\n")
    evaluation = EvaluationImages((f"list={tmp_path / 'held.txt'}",), (str(tmp_path),), max_bits=4)
    smaller = cv2.resize(photo(3), (200, 160), interpolation=cv2.INTER_AREA)
    plain = picture("http://a.org/b.jpg", 4)
    assert evaluation.names(plain) is None
    assert "looks like" in str(evaluation.names(replace(plain, phash=perceptual_hash(smaller))))
    assert "held out by list" in str(evaluation.names(replace(plain, url="http://a.org/c/000000000042.jpg?w=3")))


def picture(url: str, seed: int, side: int = 400) -> FetchedPicture:
    return FetchedPicture(url, f"/nowhere/{seed}.jpg", f"{seed:064x}", perceptual_hash(photo(seed)), side, side, 1000)


def pair(
    shown: FetchedPicture,
    text: str,
    *,
    source: TextSource = TextSource.ALT,
    score: float | None = None,
    page: str = "p",
) -> Pair:
    return Pair(pair_id(shown.sha256), CandidateText(source, text), shown, f"http://{page}.org/", "en", 1.0, score)


def test_hashes_know_copies_and_tell_others_apart() -> None:
    one = photo(1)
    quality = [cv2.IMWRITE_JPEG_QUALITY, 40]
    again = cv2.imdecode(cv2.imencode(".jpg", cv2.resize(one, (900, 720)), quality)[1], cv2.IMREAD_COLOR)
    value = int(perceptual_hash(one), 16)
    assert (value ^ int(perceptual_hash(again), 16)).bit_count() <= 4
    assert all((value ^ int(perceptual_hash(photo(seed)), 16)).bit_count() > 4 for seed in range(2, 40))


def test_pictures_of_one_colour_are_not_one_image_though_their_hashes_are() -> None:
    plain = [np.full((90, 120, 3), colour, np.uint8) for colour in ((0, 0, 255), (255, 0, 0), (9, 9, 9))]
    slope = np.repeat(np.linspace(0, 255, 120).astype(np.uint8)[None, :, None], 90, 0).repeat(3, 2)
    hashes = np.array([int(perceptual_hash(each), 16) for each in (*plain, slope, photo(1), photo(1))], np.uint64)
    assert hashes[0] == hashes[1] and not is_distinctive(hashes[:4]).any()
    assert is_distinctive(np.array([int(perceptual_hash(photo(seed)), 16) for seed in range(40)], np.uint64)).all()
    digests = np.stack([np.arange(6), np.zeros(6)], 1).astype(np.uint64)
    assert groups_of_same(hashes, digests, max_bits=4).tolist() == [0, 1, 2, 3, 4, 4]
    digests[2] = digests[0]  # one file
    assert groups_of_same(hashes, digests, max_bits=4).tolist() == [0, 1, 0, 3, 4, 4]


@pytest.mark.parametrize("max_bits", [0, 1, 4, 9])
def test_photos_that_are_one_are_found_as_comparing_all_would(max_bits: int) -> None:
    """Chains too: a is one with b, b with c."""
    source = np.random.default_rng(max_bits)
    hashes = source.integers(0, 2**64, 300, dtype=np.uint64)
    for at in range(100, 300):  # copies of earlier ones, some bits changed
        flips = source.choice(64, source.integers(0, 7), replace=False).astype(np.uint64)
        hashes[at] = hashes[source.integers(at)] ^ np.bitwise_or.reduce(np.uint64(1) << flips, initial=np.uint64(0))
    digests = np.stack([np.arange(300), np.zeros(300)], 1).astype(np.uint64)
    digests[50] = digests[7]
    is_same = np.bitwise_count(hashes[:, None] ^ hashes[None]) <= max_bits
    is_same |= (digests[:, None] == digests[None]).all(-1)
    for _ in range(9):  # 2^9 steps of a chain
        is_same = (is_same.astype(int) @ is_same) > 0
    assert groups_of_same(hashes, digests, max_bits=max_bits).tolist() == is_same.argmax(1).tolist()


def aggregated(pairs: list[Pair], limits: AggregationThresholds) -> tuple[list[Pair], list[DroppedPair]]:
    found = aggregate(pairs, limits, lambda _: None)
    kept, dropped = list(found.kept()), list(found.dropped())
    counts = {reason: count for reason, count in found.num_dropped.items() if count}
    assert found.num_kept == len(kept) and counts == Counter(each.reason for each in dropped)
    return kept, dropped


def test_an_image_keeps_its_best_text_in_any_order() -> None:
    copies = [picture("http://a.org/1.jpg", 1), picture("http://b.org/1.jpg", 1, side=800)]
    pairs = [
        pair(copies[0], "the first text of it", score=0.6),
        pair(copies[1], "the best text of it", source=TextSource.NEAR, score=0.9, page="q"),
        pair(picture("http://c.org/2.jpg", 2), "another image altogether", score=0.7),
    ]
    limits = AggregationThresholds()
    kept, dropped = aggregated(pairs, limits)
    assert (kept, dropped) == aggregated(pairs[::-1], limits)
    best = next(each for each in kept if each.text.text == "the best text of it")
    assert best.picture.url == "http://b.org/1.jpg" and best.num_pages == 2
    assert [each.reason for each in dropped] == [Reason.SAME_IMAGE]
    without = [replace(each, score=None) for each in pairs]
    assert "the first text of it" in {each.text.text for each in aggregated(without, limits)[0]}


@pytest.mark.parametrize("images, left", [(10, 11), (11, 1)])
def test_a_text_of_more_than_ten_images_goes_with_all_its_pairs(images: int, left: int) -> None:
    pairs = [
        pair(picture(f"http://a.org/{seed}.jpg", seed), "A cat, on a mat." if seed % 2 else "a cat on a mat")
        for seed in range(images)
    ]
    pairs.append(pair(picture("http://a.org/x.jpg", 99), "a dog on a rug"))
    kept, dropped = aggregated(pairs, AggregationThresholds())
    assert len(kept) == left and {each.reason for each in dropped} <= {Reason.SHARED_TEXT}
    assert normalised("A cat, on a mat.") == normalised("a cat on a mat")


def test_the_porn_detector_runs_and_scores_nothing_on_noise() -> None:
    nsfw, racy = nsfw_scores(photo(1))
    assert 0 <= nsfw < 0.5 and 0 <= racy <= 1
