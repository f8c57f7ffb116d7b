"""VCR about COCO's pictures: {train,val,test}.jsonl beside vcr1images/<year>/<name>.jpg and <name>.json, and
object_names.txt with the world's classes, one a line, which recipes need that tell a model the classes of boxes.

The year stands where VCR has the movie, so that img_fn is the picture's path below the world's folder coco. Things have
the order of the scene graph, which is that of the regions in a perfect store. test.jsonl has no labels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.tasks.blind_reader import STRENGTHS, BlindReader
from roibeam.pipelines.toyworld.tasks.known_picture import KnownPicture
from roibeam.pipelines.toyworld.tasks.task_splits import VCR_SPLITS, place_name
from roibeam.pipelines.toyworld.tasks.vcr_questions import CHOICES, Choice, VcrRow, ask
from roibeam.pipelines.toyworld.world import CATEGORIES

_PURPOSE = 5
IMAGES_FOLDER, OBJECT_NAMES = "vcr1images", "object_names.txt"
_SPLIT_OF = {place: split for split, places in VCR_SPLITS.items() for place in places}


class VcrTask:
    """Takes the world's pictures in their order, then writes."""

    name = "vcr"

    def __init__(self) -> None:
        self._pictures: dict[str, list[Picture]] = {split: [] for split in VCR_SPLITS}
        self._rows: dict[str, list[tuple[Picture, VcrRow]]] = {split: [] for split in VCR_SPLITS}

    def add(self, picture: Picture) -> None:
        split = _SPLIT_OF.get(place_name(picture))
        if split is None:
            return
        stream = IntegerStream(picture.scene.seed, _PURPOSE, picture.scene.index)
        rows = ask(KnownPicture(picture), stream)
        self._pictures[split] += [picture] * bool(rows)
        self._rows[split] += [(picture, row) for row in rows]

    def close(self) -> None:
        """Nothing waits for more pictures."""

    def rows(self) -> dict[str, int]:
        return {split: len(rows) for split, rows in self._rows.items()}

    def links(self) -> Iterator[tuple[Picture, str]]:
        """Pictures, and where they belong below the folder of the task."""
        for pictures in self._pictures.values():
            for picture in pictures:
                yield picture, f"{IMAGES_FOLDER}/{picture.file_name}"

    def write(self, folder: Path) -> None:
        for pictures in self._pictures.values():
            for picture in pictures:
                text = json.dumps(_metadata(picture), separators=(",", ":")) + "\n"
                write_text(folder / IMAGES_FOLDER / _metadata_name(picture), text)
        for split, rows in self._rows.items():
            lines = [json.dumps(self._line(split, place, *row)) for place, row in enumerate(rows)]
            write_text(folder / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
        write_text(folder / OBJECT_NAMES, "".join(f"{name}\n" for name in CATEGORIES))

    def _line(self, split: str, place: int, picture: Picture, row: VcrRow) -> dict[str, Any]:
        labels = {} if split == "test" else {"answer_label": row.answer, "rationale_label": row.rationale}
        return {
            "movie": picture.file_name.partition("/")[0],
            "objects": [thing.category for thing in picture.scene.objects],
            "img_fn": picture.file_name,
            "metadata_fn": _metadata_name(picture),
            "question": row.question,
            "answer_choices": [choice.tokens for choice in row.answers],
            "rationale_choices": [choice.tokens for choice in row.rationales],
            "img_id": f"{split}-{picture.number}",
            "question_number": place,
            "annot_id": f"{split}-{place}",
            "match_fold": f"{split}-0",
            "match_index": place,
        } | labels

    def write_results(self, folder: Path) -> None:
        """Scores of who knows the scene graph, and of who only knows the training file."""
        rows = [row for _, row in self._rows["val"]]
        _write_scores(folder / "perfect" / "vcr_val.csv", [(_sure(row.answer), _sure(row.rationale)) for row in rows])
        _write_scores(folder / "blind" / "vcr_val.csv", self._guessed(rows))

    def _guessed(self, rows: list[VcrRow]) -> list[tuple[list[float], list[float]]]:
        reader = BlindReader()
        for _, row in self._rows["train"]:
            for choices, right in ((row.answers, row.answer), (row.rationales, row.rationale)):
                # A claim is learnt as true where the right choice makes it: its wrong ones share half of it.
                true = set(choices[right].facts)
                for keys in dict.fromkeys(keys for choice in choices for keys in choice.facts):
                    reader.learn(keys, keys in true)

        def best(right: list[int], choices: list[tuple[Choice, ...]]) -> list[list[float]]:
            def weighed(strength: float) -> list[list[float]]:
                return [[reader.evidence(each.facts, strength) for each in four] for four in choices]

            return max(
                map(weighed, STRENGTHS),
                key=lambda scores: sum(
                    four.index(max(four)) == place for four, place in zip(scores, right, strict=True)
                ),
            )

        answers = best([row.answer for row in rows], [row.answers for row in rows])
        rationales = best([row.rationale for row in rows], [row.rationales for row in rows])
        return list(zip(answers, rationales, strict=True))


def _sure(place: int) -> list[float]:
    return [float(choice == place) for choice in range(CHOICES)]


def _write_scores(path: Path, scores: list[tuple[list[float], list[float]]]) -> None:
    """The leaderboard's file; the rationales' scores are the same for each answer that they may follow."""
    head = [f"answer_{choice}" for choice in range(CHOICES)]
    head += [f"rationale_conditioned_on_a{answer}_{choice}" for answer in range(CHOICES) for choice in range(CHOICES)]
    lines = [",".join(["annot_id", *head])]
    for place, (answers, rationales) in enumerate(scores):
        lines.append(",".join([f"val-{place}", *(f"{score:.6f}" for score in [*answers, *rationales * CHOICES])]))
    write_text(path, "".join(f"{line}\n" for line in lines))


def _metadata_name(picture: Picture) -> str:
    return picture.file_name.rpartition(".")[0] + ".json"


def _metadata(picture: Picture) -> dict[str, Any]:
    things = picture.scene.objects
    return {
        "boxes": [[x, y, x + width, y + height, 1.0] for x, y, width, height in (thing.box for thing in things)],
        "segms": [
            [[list(points) for points in zip(outline[::2], outline[1::2], strict=True)] for outline in outlines]
            for outlines in picture.polygons
        ],
        "names": [thing.category for thing in things],
        "width": picture.scene.width,
        "height": picture.scene.height,
    }
