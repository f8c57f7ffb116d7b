"""Toy web on disk, and the share of its pages that a collection got right:

    WEB/web.json             version, seed, counts, digest of all texts; written last
        site/                a server's files: site-NN/story-N.html, site-NN/img/, site-NN/static/
        warc/part-N.warc.gz  the same pages as WARC 1.0 (ISO 28500), gzipped record by record, a thousand a file
        truth.jsonl          a line for each page: its kind, its main picture, its texts, and its faults
        images.csv           image,label of the main pictures: natural or not, for `roibeam collect train-images`
        pictures.tsv         the main pictures with their kind, a list that `roibeam extract` reads
        pairs.csv            image,text,label,source,page of natural pictures, for `roibeam collect train-pairs`

Pages name pictures by a server's address here: `python -m http.server PORT --bind 127.0.0.1 --directory WEB/site`. A
folder that is there is whole. The result does not depend on the number of processes.
"""

import csv
import gzip
import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from roibeam.pipelines.common.console.progress import Progress, Unit
from roibeam.pipelines.data.datasets.photo_folders import WEB_FORMAT, WEB_NAME
from roibeam.pipelines.toyworld.web_pages import PAGES_FOLDER, WebPlan, draw_pages, draw_static
from roibeam.pipelines.toyworld.web_texts import SENTENCES
from roibeam.pipelines.toyworld.world import place_of
from roibeam.pipelines.toyworld.world_files import FolderBesideWorld, in_processes, write_text

_DATE = "2019-07-01T12:00:00Z"  # fixed: equal pages give equal files
TRUTH_NAME = "truth.jsonl"
MOST_IMAGES_PER_TEXT = 10  # the rule of aggregation; the paper has the rule and no number
_NOT_WORDS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class JudgedPairs:
    """
    Attributes:
        kept: pairs of the collection; good: those of them that are right.
        expected: pictures that have a right pair; found: those of them with a right pair in the collection.
        wrong: kept pairs that are not right, by reason.
        missed: pictures without their right pair, by the kind of their page.
    """

    kept: int
    good: int
    expected: int
    found: int
    wrong: Mapping[str, int]
    missed: Mapping[str, int]

    @property
    def precision(self) -> float:
        """0 to 1; 0 where nothing was kept."""
        return self.good / self.kept if self.kept else 0.0

    @property
    def recall(self) -> float:
        return self.found / self.expected if self.expected else 0.0


def normal_text(text: str) -> str:
    """Returns lower-case words with single blanks, so that texts that differ in case and punctuation are one."""
    return _NOT_WORDS.sub(" ", text.lower()).strip()


def read_truth(web: Path) -> Iterator[dict[str, Any]]:
    """Reads one entry a page, in page order. Raises ValueError if the folder holds no toy web."""
    path = web / TRUTH_NAME
    if not path.is_file():
        raise ValueError(f"{web}: holds no {TRUTH_NAME}; name a folder that `roibeam toyworld --web` wrote")
    with open(path, encoding="ascii") as file:
        for line in file:
            yield json.loads(line)


def mark_shared(pages: list[dict[str, Any]]) -> None:
    """Marks texts of more than ten pictures as not good."""
    pictures = defaultdict(set)
    for page in pages:
        if page["good"]:
            for text in page["texts"]:
                pictures[normal_text(text["text"])].add(page["picture"]["id"])
    for page in pages:
        for text in page["texts"]:
            if text["good"] and len(pictures[normal_text(text["text"])]) > MOST_IMAGES_PER_TEXT:
                text["good"], text["why"] = False, "shared"
        page["good"] = page["good"] and any(text["good"] for text in page["texts"])


def judge(pages: Iterable[Mapping[str, Any]], kept: Iterable[tuple[str, str]]) -> JudgedPairs:
    """Judges the pairs of a collection.

    Args:
        pages: of `read_truth`.
        kept: (address of the picture, text) of each pair of the collection.
    """
    picture_of: dict[str, int] = {}
    reasons: dict[tuple[int, str], str] = {}
    kind_of: dict[int, str] = {}
    for page in pages:
        picture = page["picture"]
        picture_of |= dict.fromkeys(picture["urls"], picture["id"])
        if page["good"]:
            kind_of.setdefault(picture["id"], page["kind"])
        for text in page["texts"]:
            key = picture["id"], normal_text(text["text"])
            why = "" if page["good"] and text["good"] else text["why"] or page["kind"]
            reasons[key] = "" if reasons.get(key) == "" else why
    wrong, found, total = Counter[str](), set(), 0
    for url, text in kept:
        total += 1
        picture_id = picture_of.get(url)
        if picture_id is None:
            wrong["no main picture"] += 1
            continue
        why = reasons.get((picture_id, normal_text(text)), "text about other things")
        if why:
            wrong[why] += 1
        else:
            found.add(picture_id)
    missed = Counter(kind for picture, kind in kind_of.items() if picture not in found)
    return JudgedPairs(total, total - sum(wrong.values()), len(kind_of), len(found), dict(wrong), dict(missed))


WEB_VERSION = 1
IMAGES_NAME, PAIRS_NAME, PICTURES_NAME = "images.csv", "pairs.csv", "pictures.tsv"
MAX_PAGES = 1_000_000
PAGES = Unit("page", "pages")
_CHUNK = 50
_PAGES_PER_WARC = 1000


@dataclass(frozen=True)
class ToyWeb(FolderBesideWorld):
    """Request for a web of pages.

    Attributes, beside those of its folder:
        num_pages: of the web.
        port: that its pictures are served at.
        page_kb: median size of a page, 10^3 bytes.
    """

    num_pages: int
    port: int
    page_kb: int
    option, holds, manifest_name, format, version = "--web", "pages", WEB_NAME, WEB_FORMAT, WEB_VERSION

    def check(self) -> None:
        if self.num_pages > MAX_PAGES:
            raise ValueError(f"--pages {self.num_pages:,}: a toy web has at most {MAX_PAGES:,} pages")
        super().check()

    def plan(self) -> dict[str, Any]:
        return super().plan() | {"pages": self.num_pages, "port": self.port, "page_kb": self.page_kb}

    def _write_files(self, folder: Path, workers: int) -> dict[str, Any]:
        scenes = tuple(index for index in range(self.num_images) if _is_evaluated(index))
        plan = WebPlan(self.seed, self.num_pages, f"http://127.0.0.1:{self.port}", self.page_kb, scenes)
        folder.mkdir(parents=True)
        draw_static(folder, self.seed)
        parts = [
            (folder, plan, first, min(first + _CHUNK, plan.num_pages)) for first in range(0, plan.num_pages, _CHUNK)
        ]
        with Progress("writing pages", plan.num_pages, PAGES) as progress:
            drawn = chain.from_iterable(in_processes(draw_pages, parts, workers))
            pages = [json.loads(line) for line in progress.counting(drawn)]
        mark_shared(pages)
        truth = "".join(json.dumps(page, ensure_ascii=True) + "\n" for page in pages)
        images, pairs = _image_labels(pages), _pair_labels(pages)
        first = {f"{PAGES_FOLDER}/{page['picture']['file']}": page["kind"] for page in reversed(pages)}
        listed = "".join(f"{kind}\t{file}\n" for file, kind in first.items())
        for name, text in ((TRUTH_NAME, truth), (IMAGES_NAME, images), (PAIRS_NAME, pairs), (PICTURES_NAME, listed)):
            write_text(folder / name, text)
        digest = hashlib.sha256("".join((truth, images, pairs)).encode())
        _write_warc(folder, pages, digest.update)
        kinds = Counter(page["kind"] for page in pages)
        good = {page["picture"]["id"] for page in pages if page["good"]}
        return {"kinds": dict(sorted(kinds.items())), "good_pictures": len(good), "sha256": digest.hexdigest()}


def _is_evaluated(index: int) -> bool:
    """Whether results for captions are reported on a picture of the world."""
    place = place_of(index)
    return place.split == "test" and place.dataset in ("coco", "flickr30k")


def _image_labels(pages: Iterable[dict[str, Any]]) -> str:
    rows = ((page["picture"]["file"], "natural" if page["picture"]["natural"] else "not") for page in pages)
    return _csv(("image", "label"), ((f"{PAGES_FOLDER}/{file}", label) for file, label in dict(rows).items()))


def _pair_labels(pages: Iterable[dict[str, Any]]) -> str:
    """Labels of texts of natural pictures: 1 where true, 0 where not; without texts that another rule drops.

    Every second page has a sentence of its story too, as such texts also stand near a picture.
    """
    rows = []
    for number, page in enumerate(pages):
        if page["kind"] in ("good", "mixed", "copied", "wrong", "swapped"):
            image = f"{PAGES_FOLDER}/{page['picture']['file']}"
            for text in page["texts"]:
                if text["why"] in ("", "wrong", "swapped"):
                    rows.append((image, text["text"], "1" if text["good"] else "0", text["source"], page["page"]))
            if number % 2:
                rows.append((image, SENTENCES[number // 2 % len(SENTENCES)], "0", "sentence", page["page"]))
    return _csv(("image", "text", "label", "source", "page"), rows)


def _csv(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _write_warc(folder: Path, pages: list[dict[str, Any]], add_to_digest: Any) -> None:
    (folder / "warc").mkdir()
    for first in range(0, len(pages), _PAGES_PER_WARC):
        with open(folder / "warc" / f"part-{first // _PAGES_PER_WARC:05d}.warc.gz", "wb") as file:
            info = b"software: roibeam toyworld\r\nformat: WARC/1.0\r\n"
            _write_record(file, "warcinfo", "", "application/warc-fields", info)
            for page in pages[first : first + _PAGES_PER_WARC]:
                body = (folder / PAGES_FOLDER / page["file"]).read_bytes()
                add_to_digest(body)
                # The server of every second page leaves the charset to the page.
                charset = f"; charset={page['charset']}" if len(body) % 2 == 0 else ""
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html{charset}\r\nContent-Length: {len(body)}\r\n\r\n"
                answer = head.encode("ascii") + body
                _write_record(file, "response", page["page"], "application/http; msgtype=response", answer)


def _write_record(file: BinaryIO, kind: str, url: str, content_type: str, block: bytes) -> None:
    digits = hashlib.sha256(f"{kind} {url} {Path(file.name).name}".encode()).hexdigest()
    name = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"
    lines = [
        "WARC/1.0", f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{name}>", f"WARC-Date: {_DATE}",
        *([f"WARC-Target-URI: {url}"] if url else []),
        f"Content-Type: {content_type}", f"Content-Length: {len(block)}",
    ]  # fmt: skip
    record = "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + block + b"\r\n\r\n"
    file.write(gzip.compress(record, compresslevel=6, mtime=0))
