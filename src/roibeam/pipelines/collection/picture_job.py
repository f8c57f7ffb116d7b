"""Steps 5 and 6 on a unit of fetched files: decoded, measured and hashed pictures, with the scores of their texts.

Pornographic pictures are detected by NudeNet's small detector of body parts, whose weights ship in its wheel
(320n.onnx, 12 MB). The paper used a classifier of its own, not described. OpenNSFW's wheel needs a Pillow of 2021.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.messages import printable
from roibeam.pipelines.collection.judging.judges import JudgeFiles
from roibeam.pipelines.collection.judging.pair_judge import TrainedPairJudge
from roibeam.pipelines.collection.page_steps import candidate_from_json
from roibeam.pipelines.collection.pairs import FetchedPicture, PageCandidate, Pair, Reason, pair_id
from roibeam.pipelines.collection.part import Counts, UnitJob
from roibeam.pipelines.collection.same_images import perceptual_hash
from roibeam.pipelines.collection.thresholds import PictureThresholds

# Classes of NudeNet 3.4; a picture's score is that of its surest part.
NSFW_CLASSES = frozenset(
    {"FEMALE_BREAST_EXPOSED", "FEMALE_GENITALIA_EXPOSED", "MALE_GENITALIA_EXPOSED", "ANUS_EXPOSED", "BUTTOCKS_EXPOSED"}
)
RACY_CLASSES = frozenset(
    {"FEMALE_BREAST_COVERED", "FEMALE_GENITALIA_COVERED", "BUTTOCKS_COVERED", "ANUS_COVERED", "BELLY_EXPOSED"}
)


@cache
def _detector() -> Any:
    import onnxruntime
    from nudenet import NudeDetector

    onnxruntime.set_default_logger_severity(3)
    return NudeDetector()


def nsfw_scores(pixels_bgr: np.ndarray) -> tuple[float, float]:
    """Returns (nsfw, racy) scores, 0..1 each, of (H, W, 3) uint8 pixels."""
    found = _detector().detect(pixels_bgr)
    nsfw = max((each["score"] for each in found if each["class"] in NSFW_CLASSES), default=0.0)
    racy = max((each["score"] for each in found if each["class"] in RACY_CLASSES), default=0.0)
    return round(float(nsfw), 4), round(float(racy), 4)


@dataclass(frozen=True)
class FetchedFile:
    """A file of the download: absolute path, and SHA-256 and size by its journal."""

    url: str
    path: str
    sha256: str
    num_bytes: int


def look_at(
    file: FetchedFile, limits: PictureThresholds, *, is_nsfw_checked: bool, max_pixels: int
) -> FetchedPicture | tuple[Reason, str]:
    """Decodes, measures and checks a picture: why it is dropped, and a detail for people, in place of one that is.

    Args:
        is_nsfw_checked: whether to look for porn and racy pictures; else the scores are None.
        max_pixels: a picture of more is not decoded.
    """
    try:
        data = Path(file.path).read_bytes()
        if hashlib.sha256(data).hexdigest() != file.sha256:
            return Reason.UNDECODABLE, "has other bytes than were fetched; run again"
        pixels = decode_image(data, max_pixels=max_pixels)
    except (DecodeError, OSError) as error:
        return Reason.UNDECODABLE, printable(str(error), 200)
    height, width = pixels.shape[:2]
    if min(height, width) <= limits.larger_than_px:
        return Reason.TOO_SMALL, f"{width} x {height}"
    nsfw, racy = nsfw_scores(pixels) if is_nsfw_checked else (None, None)
    if nsfw is not None and racy is not None and limits.is_unfit(nsfw, racy):
        return Reason.NSFW, f"nsfw {nsfw:.2f}, racy {racy:.2f}"
    phash = perceptual_hash(pixels)
    return FetchedPicture(file.url, file.path, file.sha256, phash, width, height, file.num_bytes, nsfw, racy)


RULES_VERSION = 1  # of the rules of steps 5 and 6


@dataclass(frozen=True)
class PictureUnit:
    """Attributes:
    number: from 0.
    path: of a file with a JSON object a line: "file", a `FetchedFile`, and "candidates", of the pages with it.
    state: digest of that file.
    """

    number: int
    path: str
    state: str


@dataclass(frozen=True)
class PictureJob(UnitJob):
    """Steps 5 and 6 on a unit; workers open the judges.

    Attributes, beside those of `UnitJob`:
        judges: None for none.
        judges_state: digest of the judges' files.
        is_nsfw_checked: whether to look for porn.
        max_pixels: pictures of more are not decoded.
    """

    limits: PictureThresholds
    judges: JudgeFiles | None
    judges_state: str
    is_nsfw_checked: bool
    max_pixels: int

    def fingerprint(self, unit: PictureUnit) -> str:
        settings = [RULES_VERSION, asdict(self.limits), self.judges_state, self.is_nsfw_checked, self.max_pixels]
        return json.dumps([unit.state, settings], sort_keys=True)

    def rows(self, unit: PictureUnit, counts: Counts) -> Iterator[Pair]:
        rows = [json.loads(line) for line in Path(unit.path).read_text("utf-8").splitlines()]
        pictures = self._natural([self._picture(row, counts) for row in rows], counts)
        pairs = [
            pair
            for row, picture in zip(rows, pictures, strict=True)
            if picture is not None
            for pair in pairs_of(picture, map(candidate_from_json, row["candidates"]))
        ]
        judge = None if self.judges is None else self.judges.pair_judge()
        passed = pairs if judge is None else _scored(pairs, judge, counts)
        counts.taken = len(rows)
        counts.kept = len({pair.picture.url for pair in passed})
        yield from passed

    def _picture(self, row: dict[str, Any], counts: Counts) -> FetchedPicture | None:
        file = FetchedFile(**row["file"])
        found = look_at(file, self.limits, is_nsfw_checked=self.is_nsfw_checked, max_pixels=self.max_pixels)
        if isinstance(found, FetchedPicture):
            return found
        reason, detail = found
        text = row["candidates"][0]["image"]["texts"][0]["text"]
        example = {"image": printable(file.url, 300), "text": printable(text, 200), "detail": detail}
        counts.drop(reason.value, example)
        return None

    def _natural(self, pictures: list[FetchedPicture | None], counts: Counts) -> list[FetchedPicture | None]:
        """Returns the pictures with the judge's scores, and None for those that are not natural."""
        judge = None if self.judges is None else self.judges.picture_judge()
        if judge is None:
            return pictures
        decoded = [picture for picture in pictures if picture is not None]
        scores = iter(judge.score(decoded))
        judged: list[FetchedPicture | None] = []
        for picture in pictures:
            if picture is None:
                judged.append(None)
                continue
            score = round(float(next(scores)), 6)
            is_natural = score >= judge.threshold
            judged.append(replace(picture, natural=score) if is_natural else None)
            if not is_natural:
                example = {"image": printable(picture.url, 300), "detail": f"score {score:.3f}", "path": picture.path}
                counts.drop(Reason.NOT_NATURAL.value, example)
        return judged


def pairs_of(picture: FetchedPicture, candidates: Iterable[PageCandidate]) -> list[Pair]:
    """Makes a pair for each text of each page, in a fixed order."""
    pairs = [
        Pair(
            pair_id(picture.sha256), text, picture, page.page_url, page.language, page.language_score, None,
            page.robots, page.place,
        )
        for page in candidates
        for text in page.image.texts
    ]  # fmt: skip
    return sorted(pairs, key=lambda pair: (pair.page_url, pair.place, pair.text.source.value, pair.text.text))


def _scored(pairs: Sequence[Pair], judge: TrainedPairJudge, counts: Counts) -> list[Pair]:
    """Returns the pairs that pass, with their scores; a picture without one is dropped."""
    scores = [round(float(score), 6) for score in judge.score(pairs)]
    passed = [replace(pair, score=score) for pair, score in zip(pairs, scores, strict=True) if score >= judge.threshold]
    left = {pair.picture.url for pair in passed}
    lost: dict[str, tuple[float, Pair]] = {}
    for pair, score in zip(pairs, scores, strict=True):
        if pair.picture.url not in left and score > lost.get(pair.picture.url, (-1.0, pair))[0]:
            lost[pair.picture.url] = (score, pair)
    for score, pair in lost.values():
        example = {"image": printable(pair.picture.url, 300), "text": printable(pair.text.text, 200)}
        counts.drop(Reason.LOW_SCORE.value, example | {"detail": f"score {score:.3f}", "path": pair.picture.path})
    return passed


def unit_state(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
