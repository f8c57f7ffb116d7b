"""What is true of the toy web's pages, as truth.jsonl says, and how far a collection that was made of them is right."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRUTH_NAME = "truth.jsonl"
MOST_IMAGES_PER_TEXT = 10  # the rule of aggregation; the paper has the rule and no number
_NOT_WORDS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class JudgedPairs:
    """
    Attributes:
        kept: pairs of the collection; good: those of them that are right.
        expected: pictures that have a right pair; found: those of them with a right pair in the collection.
        wrong: kept pairs that are not right, by what is wrong with them.
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
    """Lower-case words with single blanks: texts that differ in case and punctuation are one."""
    return _NOT_WORDS.sub(" ", text.lower()).strip()


def read_truth(web: Path) -> Iterator[dict[str, Any]]:
    """One entry a page, in page order.

    Raises:
        ValueError: if the folder holds no toy web.
    """
    path = web / TRUTH_NAME
    if not path.is_file():
        raise ValueError(f"{web}: holds no {TRUTH_NAME}; name a folder that `roibeam toyworld --web` wrote")
    with open(path, encoding="ascii") as file:
        for line in file:
            yield json.loads(line)


def mark_shared(pages: list[dict[str, Any]]) -> None:
    """Takes the goodness from texts of more than ten pictures."""
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
    """
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
