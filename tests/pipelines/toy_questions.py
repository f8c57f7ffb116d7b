"""VQA v2's official files over a drawn world: questions of colour, kind and number, answered by ten who agree."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from roibeam.pipelines.toyworld.picture import SCENES_NAME
from roibeam.pipelines.toyworld.world import CATEGORIES

YEARS = ("train2014", "val2014")


def write_questions(world: Path, folder: Path) -> Path:
    """Questions and annotations of both splits of the world's COCO pictures."""
    folder.mkdir(parents=True)
    for year in YEARS:
        questions, annotations = [], []
        for number, asked in _pictures(world, year):
            for place, (question, answer, kind) in enumerate(asked):
                ids = {"question_id": 1000 * number + place, "image_id": number}
                questions.append({**ids, "question": question})
                told = [{"answer": answer, "answer_confidence": "yes", "answer_id": each + 1} for each in range(10)]
                types = {"question_type": " ".join(question.split()[:2]), "answer_type": kind}
                annotations.append({**ids, **types, "multiple_choice_answer": answer, "answers": told})
        shared = {"data_type": "mscoco", "data_subtype": year}
        path = folder / f"v2_OpenEnded_mscoco_{year}_questions.json"
        path.write_text(json.dumps({**shared, "questions": questions}))
        (folder / f"v2_mscoco_{year}_annotations.json").write_text(json.dumps({**shared, "annotations": annotations}))
    return folder


def _pictures(world: Path, year: str) -> Iterator[tuple[int, list[tuple[str, str, str]]]]:
    """Number of each picture and its questions, answers and kinds of answer."""
    for line in (world / SCENES_NAME).read_text().splitlines():
        scene: dict[str, Any] = json.loads(line)
        if scene["file"].startswith(f"coco/{year}/"):
            yield scene["index"] + 1, list(_questions(scene))


def _questions(scene: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    kinds = Counter(thing["category"] for thing in scene["objects"])
    for thing in scene["objects"]:
        if kinds[thing["category"]] == 1:
            yield f"What color is the {thing['category']}?", thing["attributes"][0], "other"
    for kind, count in kinds.items():
        yield f"How many of {kind} are there?", str(count), "number"
    # As many that are there as others, drawn by how common they are: the question alone tells nothing.
    draw = Random(scene["index"])
    for kind in draw.sample(sorted(kinds), min(2, len(kinds))) + draw.sample(sorted(set(CATEGORIES) - set(kinds)), 2):
        yield f"Is there a {kind}?", "yes" if kind in kinds else "no", "yes/no"
