"""VQA v2 about COCO's pictures: v2_OpenEnded_mscoco_<year>_questions.json, v2_mscoco_<year>_annotations.json.

train2014 asks about the training pictures, val2014 about those of Karpathy's val and test. Ids are VQA's: the number of
the picture, and 1,000 times that with the place of the question.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.blind_reader import STRENGTHS, BlindReader
from roibeam.pipelines.toyworld.tasks.known_picture import KnownPicture
from roibeam.pipelines.toyworld.tasks.task_splits import VQA_SPLITS, place_name
from roibeam.pipelines.toyworld.tasks.vqa_annotators import annotation
from roibeam.pipelines.toyworld.tasks.vqa_questions import Question, ask

_PURPOSE = 4
_YEARS = {"train": "train2014", "val": "val2014"}
_ELSEWHERE = 40  # things of the pictures before, to ask about what is not there
_INFO = {"description": "roibeam toy world", "url": "", "version": "2.0", "year": 2026, "contributor": "roibeam"}
_LICENSE = {"name": "Apache License 2.0", "url": "http://www.apache.org/licenses/LICENSE-2.0"}
_SPLIT_OF = {place: split for split, places in VQA_SPLITS.items() for place in places}


class VqaTask:
    """Takes the world's pictures in their order, then writes."""

    name = "vqa"

    def __init__(self) -> None:
        self._asked: dict[str, list[tuple[int, Question]]] = {split: [] for split in VQA_SPLITS}
        self._annotations: dict[str, list[dict[str, Any]]] = {split: [] for split in VQA_SPLITS}
        self._elsewhere: dict[str, deque[SceneObject]] = {split: deque(maxlen=_ELSEWHERE) for split in VQA_SPLITS}

    def add(self, picture: Picture) -> None:
        split = _SPLIT_OF.get(place_name(picture))
        if split is None:
            return
        stream = IntegerStream(picture.scene.seed, _PURPOSE, picture.scene.index)
        known = KnownPicture(picture)
        elsewhere = self._elsewhere[split]
        for place, question in enumerate(ask(known, stream, list(elsewhere))):
            number = picture.number * 1000 + place
            self._asked[split].append((number, question))
            told = annotation(question, stream, number=number, image=picture.number)
            self._annotations[split].append(told)
        elsewhere.extend(known.clear)

    def close(self) -> None:
        """Nothing waits for more pictures."""

    def rows(self) -> dict[str, int]:
        return {split: len(asked) for split, asked in self._asked.items()}

    def links(self) -> Iterator[tuple[Picture, str]]:
        """None: the pictures lie where COCO's do."""
        return iter(())

    def write(self, folder: Path) -> None:
        for split, year in _YEARS.items():
            shared = {
                "info": _INFO,
                "license": _LICENSE,
                "data_subtype": year,
                "data_type": "mscoco",
            }
            questions = [
                {"image_id": number // 1000, "question": question.text, "question_id": number}
                for number, question in self._asked[split]
            ]
            questions_file = shared | {"task_type": "Open-Ended", "questions": questions}
            write_text(folder / f"v2_OpenEnded_mscoco_{year}_questions.json", json.dumps(questions_file) + "\n")
            annotations_file = shared | {"annotations": self._annotations[split]}
            write_text(folder / f"v2_mscoco_{year}_annotations.json", json.dumps(annotations_file) + "\n")

    def write_results(self, folder: Path) -> None:
        """What who knows the scene graph answers, and who only knows the training questions and answers."""
        asked = self._asked["val"]
        _write_answers(folder / "perfect" / "vqa_val.json", [(number, each.answer) for number, each in asked])
        _write_answers(folder / "blind" / "vqa_val.json", self._guessed())

    def _guessed(self) -> list[tuple[int, str]]:
        reader = BlindReader()
        for _, question in self._asked["train"]:
            reader.learn(question.keys, question.answer)

        def guesses(strength: float) -> list[tuple[int, str]]:
            return [(number, str(reader.best(each.keys, strength))) for number, each in self._asked["val"]]

        right = {number: each.answer for number, each in self._asked["val"]}
        return max(map(guesses, STRENGTHS), key=lambda found: sum(right[number] == answer for number, answer in found))


def _write_answers(path: Path, answers: list[tuple[int, str]]) -> None:
    rows = [{"question_id": number, "answer": answer} for number, answer in answers]
    write_text(path, json.dumps(rows) + "\n")
