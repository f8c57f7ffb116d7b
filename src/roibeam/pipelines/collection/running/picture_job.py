"""A worker's side of steps 5 and 6: fetched files with their candidates -> pictures with scored texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roibeam.features.printable import printable
from roibeam.pipelines.collection.judges import Judges, PairJudge
from roibeam.pipelines.collection.looking.page_steps import candidate_from_json
from roibeam.pipelines.collection.pair import PageCandidate, Pair, Picture, pair_id
from roibeam.pipelines.collection.pictures.picture_step import DroppedPicture, FetchedFile, look_at
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.running.part import Counts, PartWriter, is_done
from roibeam.pipelines.collection.thresholds import PictureThresholds

RULES_VERSION = 1  # of what steps 5 and 6 do


@dataclass(frozen=True)
class PictureUnit:
    """Attributes:
    number: from 0.
    path: of a file with a JSON object a line: "file", a `FetchedFile`, and "candidates", of the pages that show it.
    state: digest of that file.
    """

    number: int
    path: str
    state: str


@dataclass(frozen=True)
class PictureJob:
    """Plain and picklable; travels to the workers, which open the judges.

    Attributes:
        folder: where parts go; seen by all workers.
        judges: None for none.
        judges_state: digest of the judges' files.
        is_nsfw_checked: whether to look for porn.
        max_pixels: pictures of more are not decoded.
    """

    folder: str
    limits: PictureThresholds
    judges: Judges | None
    judges_state: str
    is_nsfw_checked: bool
    max_pixels: int

    def fingerprint(self, unit: PictureUnit) -> str:
        settings = [RULES_VERSION, asdict(self.limits), self.judges_state, self.is_nsfw_checked, self.max_pixels]
        return json.dumps([unit.state, settings], sort_keys=True)

    def is_done(self, unit: PictureUnit) -> bool:
        return is_done(Path(self.folder), unit.number, self.fingerprint(unit))

    def do(self, unit: PictureUnit) -> None:
        counts = Counts()
        rows = [json.loads(line) for line in Path(unit.path).read_text("utf-8").splitlines()]
        with PartWriter(Path(self.folder), unit.number, self.fingerprint(unit)) as part:
            pictures = self._natural([self._picture(row, counts) for row in rows], counts)
            pairs = [
                pair
                for row, picture in zip(rows, pictures, strict=True)
                if picture is not None
                for pair in pairs_of(picture, map(candidate_from_json, row["candidates"]))
            ]
            judge = None if self.judges is None else self.judges.pair_judge()
            passed = pairs if judge is None else _scored(pairs, judge, counts)
            for pair in passed:
                part.write(asdict(pair))
            counts.taken = len(rows)
            counts.kept = len({pair.picture.url for pair in passed})
            part.finish(counts)

    def _picture(self, row: dict[str, Any], counts: Counts) -> Picture | None:
        file = FetchedFile(**row["file"])
        found = look_at(file, self.limits, is_nsfw_checked=self.is_nsfw_checked, max_pixels=self.max_pixels)
        if not isinstance(found, DroppedPicture):
            return found
        counts.reasons[found.reason.value] += 1
        counts.add_example(found.reason.value, _example(file.url, found.detail, row["candidates"]))
        return None

    def _natural(self, pictures: list[Picture | None], counts: Counts) -> list[Picture | None]:
        """With the judge's scores, and None for what is no natural picture."""
        judge = None if self.judges is None else self.judges.picture_judge()
        if judge is None:
            return pictures
        asked = [picture for picture in pictures if picture is not None]
        scores = iter(judge.score(asked))
        judged: list[Picture | None] = []
        for picture in pictures:
            if picture is None:
                judged.append(None)
                continue
            score = round(float(next(scores)), 6)
            is_natural = score >= judge.threshold
            judged.append(replace(picture, natural=score) if is_natural else None)
            if not is_natural:
                counts.reasons[Reason.NOT_NATURAL.value] += 1
                said = {"image": printable(picture.url, 300), "detail": f"score {score:.3f}", "path": picture.path}
                counts.add_example(Reason.NOT_NATURAL.value, said)
        return judged


def pairs_of(picture: Picture, candidates: Iterable[PageCandidate]) -> list[Pair]:
    """A pair for each text of each page, in a fixed order."""
    pairs = [
        Pair(
            pair_id(picture.sha256), text, picture, page.page_url, page.language, page.language_score, None,
            page.robots, page.place,
        )
        for page in candidates
        for text in page.image.texts
    ]  # fmt: skip
    return sorted(pairs, key=lambda pair: (pair.page_url, pair.place, pair.text.source.value, pair.text.text))


def _scored(pairs: Sequence[Pair], judge: PairJudge, counts: Counts) -> list[Pair]:
    """Those that pass, with their scores; a picture without one is dropped."""
    scores = [round(float(score), 6) for score in judge.score(pairs)]
    passed = [replace(pair, score=score) for pair, score in zip(pairs, scores, strict=True) if score >= judge.threshold]
    left = {pair.picture.url for pair in passed}
    lost: dict[str, tuple[float, Pair]] = {}
    for pair, score in zip(pairs, scores, strict=True):
        if pair.picture.url not in left and score > lost.get(pair.picture.url, (-1.0, pair))[0]:
            lost[pair.picture.url] = (score, pair)
    for score, pair in lost.values():
        counts.reasons[Reason.LOW_SCORE.value] += 1
        said = {"image": printable(pair.picture.url, 300), "text": printable(pair.text.text, 200)}
        counts.add_example(Reason.LOW_SCORE.value, said | {"detail": f"score {score:.3f}", "path": pair.picture.path})
    return passed


def _example(url: str, detail: str, candidates: list[dict[str, Any]]) -> dict[str, str]:
    text = candidates[0]["image"]["texts"][0]["text"]
    return {"image": printable(url, 300), "text": printable(text, 200), "detail": detail}


def unit_state(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
