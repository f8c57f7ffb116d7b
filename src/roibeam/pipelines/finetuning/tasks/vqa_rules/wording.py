"""How a question of VQA is worded for a model, and what becomes of it beside a mirrored photo."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from roibeam.pipelines.data.mirrored_photo import swap_left_right
from roibeam.pipelines.finetuning.rows import TaskRow

RAW, PYTHIA, IMDB = "raw", "pythia", "imdb"
QUESTION_FORMS = (RAW, PYTHIA, IMDB)
_BETWEEN_WORDS = re.compile(r"(\W+)")


def worded(question: str, form: str) -> str:
    """The text of a question.

    Args:
        form: of `QUESTION_FORMS`: as its file has it ("raw", "imdb"), or as Pythia prepared it ("pythia").
    """
    return " ".join(pythia_tokens(question)) if form == PYTHIA else question


def pythia_tokens(question: str) -> list[str]:
    """Lower case, "'s" by itself, no comma and no question mark; signs stand by themselves.

    Source: facebookresearch/pythia, and visualbert/dataloaders/vqa_dataset.py of uclanlp/visualbert (`tokenize`).
    """
    text = question.lower().replace("'s", " 's").replace(",", "").replace("?", "")
    return [part.strip() for part in _BETWEEN_WORDS.split(text) if part.strip()]


def mirrored(text: str) -> str:
    """A question or an answer beside the mirrored photo: left and right change places, as in VL-BERT's release.

    The release changes the words "left" and "right" alone; here "leftmost" becomes "rightmost" too.
    """
    return swap_left_right(text)


def mirrored_rows(rows: Iterable[TaskRow]) -> tuple[TaskRow, ...]:
    """Rows whose texts are `mirrored`."""
    return tuple(
        replace(row, parts=tuple(replace(part, words=tuple(map(mirrored, part.words))) for part in row.parts))
        for row in rows
    )
