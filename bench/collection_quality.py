"""How right a collection of a toy web is: `python bench/collection_quality.py WEB OUT [--picture-judge FILE]`.

    roibeam toyworld world/ --seed 202 --num-images 400 --web WEB --pages 5000
    python -m http.server 8780 --bind 127.0.0.1 --directory WEB/site &
    roibeam collect run WEB/site OUT --allow-private 127.0.0.0/8 ...   (docs/collection.md has the whole list)

Prints precision of the kept pairs and recall of the pictures that have a right one, what is wrong with the wrong ones
and where the missed ones were, and for each filter by itself what it drops, rightly and wrongly.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from roibeam.pipelines.collection.judging.picture_judge import open_picture_judge
from roibeam.pipelines.collection.page_steps import PageOutcome, look_into
from roibeam.pipelines.collection.pairs import FetchedPicture, Page, Reason
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.toyworld.write_web import judge, normal_text, read_truth

PRECISION_BAR, RECALL_BAR = 0.95, 0.85
Truth = Mapping[str, Any]


@dataclass(frozen=True)
class Filtered:
    """One thing that a filter was asked: whether it should go, and whether it went."""

    name: str
    should_go: bool
    went: bool


def of_pages(web: Path, pages: Iterable[Truth]) -> Iterator[Filtered]:
    """Steps 1 to 4, each by itself, on the pages of the truth."""
    thresholds = Thresholds()
    for page in pages:
        body = (web / "site" / page["file"]).read_bytes()
        outcome = look_into(Page(page["page"], body), thresholds)
        yield Filtered("opt-out of pages", page["kind"] == "opted out", outcome.reason is Reason.PAGE_OPTED_OUT)
        if page["kind"] == "opted out":
            continue
        yield Filtered("language", page["language"] != "en", outcome.reason in LANGUAGE)
        if outcome.reason not in LANGUAGE:
            yield Filtered("no image found", False, outcome.reason in (Reason.NO_IMAGE, Reason.NO_DOMINANT_IMAGE))
        yield from _of_image_and_texts(page, outcome)


LANGUAGE = (Reason.OTHER_LANGUAGE, Reason.TOO_LITTLE_TEXT)


def _of_image_and_texts(page: Truth, outcome: PageOutcome) -> Iterator[Filtered]:
    if outcome.candidate is not None:
        # A page's main picture is what should be chosen: another one "goes" wrongly.
        yield Filtered("another image chosen", False, outcome.candidate.image.url not in page["picture"]["urls"])
    kept = {normal_text(text.text) for text in outcome.candidate.image.texts} if outcome.candidate else set()
    dropped = {normal_text(text.text) for text in outcome.dropped_texts}
    for text in page["texts"]:
        normal = normal_text(text["text"])
        if normal in kept | dropped:
            is_bad = text["why"] in ("spam", "junk")
            yield Filtered(f"text rules, {text['why'] or 'right'} texts", is_bad, normal in dropped)


def of_pictures(web: Path, pages: Iterable[Truth], picture_judge: Path) -> Iterator[Filtered]:
    found = open_picture_judge(picture_judge)
    by_file = {page["picture"]["file"]: page["picture"] for page in pages}
    pictures = [FetchedPicture("", str(web / "site" / file), "", "", 1, 1, 1) for file in by_file]
    for (_, picture), score in zip(by_file.items(), found.score(pictures), strict=True):
        yield Filtered("natural pictures", not picture["natural"], score < found.threshold)


def of_collection(out: Path, pages: list[Truth]) -> None:
    rows = pq.read_table(out / "pairs.parquet", columns=["image_url", "caption"]).to_pylist()
    found = judge(pages, [(row["image_url"], row["caption"]) for row in rows])
    words = sum(len(row["caption"].split()) for row in rows) / max(len(rows), 1)
    for name, value, bar in (("precision", found.precision, PRECISION_BAR), ("recall", found.recall, RECALL_BAR)):
        print(f"{name} {value:.3f} (bar {bar}: {'met' if value >= bar else 'MISSED'})")
    print(f"{found.kept:,} pairs kept, {found.good:,} right; {found.found:,} of {found.expected:,} pictures found")
    print(f"{words:.1f} words a caption (the paper: 13)")
    print(f"wrong: {_counts(found.wrong)}\nmissed: {_counts(found.missed)}")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1])) or "none"


def print_filters(filtered: Iterable[Filtered]) -> None:
    counts = Counter((each.name, each.should_go, each.went) for each in filtered)
    print(f"{'filter':<34}{'should go':>10}{'gone':>8}{'should stay':>13}{'gone':>8}")
    for name in dict.fromkeys(name for name, _, _ in counts):
        bad, good = ([counts[name, should, went] for went in (True, False)] for should in (True, False))
        shares = (f"{100 * gone / (gone + left):.1f} %" if gone + left else "-" for gone, left in (bad, good))
        print(f"{name:<34}{sum(bad):>10,}{next(shares):>8}{sum(good):>13,}{next(shares):>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("web", type=Path)
    parser.add_argument("out", type=Path, help="folder of roibeam collect run")
    parser.add_argument("--picture-judge", type=Path)
    asked = parser.parse_args()
    pages = list(read_truth(asked.web))
    filtered = list(of_pages(asked.web, pages))
    if asked.picture_judge is not None:
        filtered += of_pictures(asked.web, pages, asked.picture_judge)
    print_filters(filtered)
    of_collection(asked.out, pages)


if __name__ == "__main__":
    main()
