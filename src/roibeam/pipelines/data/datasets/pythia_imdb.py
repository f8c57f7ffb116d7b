"""VQA's questions as Pythia prepared them (facebookresearch/pythia; VisualBERT reads them): imdb_<split>.npy.

An array of one dict a question, pickled, which is read without running anything. The first dict of the published files
tells of the file and is no question. Questions are cut into tokens, in lower case, without commas and question marks.

Id rule: `image_name`, as COCO spells it ("COCO_train2014_000000000790").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.npy_bytes import npy_value


@dataclass(frozen=True)
class ImdbQuestion:
    """Attributes:
    where: file and entry, for errors.
    image: what its image is called.
    tokens: of the question.
    answers: of its people, at most ten; None in the files of the test split.
    """

    where: str
    question_id: int
    image: str
    tokens: tuple[str, ...]
    answers: tuple[str, ...] | None


def read_imdb(path: str) -> Iterator[ImdbQuestion]:
    """The questions of a file in its order.

    Raises:
        ValueError: for a file of another kind, or naming the entry that is not as Pythia writes it.
    """
    try:
        entries = npy_value(Path(path).read_bytes(), repr(path))
    except EntryError as error:
        raise ValueError(f"{path!r}: {error}; expected Pythia's imdb, an array of one dict a question") from None
    except OSError as error:
        raise ValueError(f"{path!r}: cannot be read: {error.strerror or error}") from None
    if not isinstance(entries, list):
        raise ValueError(f"{path!r}: expected Pythia's imdb, an array of one dict a question")
    for index, entry in enumerate(entries):
        if index or (isinstance(entry, dict) and "question_id" in entry):
            yield _question(entry, f"{path!r}, entry {index}")


def _question(entry: Any, where: str) -> ImdbQuestion:
    fields = entry if isinstance(entry, dict) else {}
    number, image, answers = fields.get("question_id"), fields.get("image_name"), fields.get("valid_answers")
    tokens = fields.get("question_tokens")
    if not isinstance(number, int | np.integer) or not isinstance(image, str) or not _are_texts(tokens):
        raise ValueError(f"{where}: expected Pythia's question_id, image_name and question_tokens, got {entry!r:.80}")
    if answers is not None and not _are_texts(answers):
        raise ValueError(f"{where}: expected a list of texts as valid_answers, got {answers!r:.80}")
    return ImdbQuestion(where, int(number), image, tuple(tokens or ()), None if answers is None else tuple(answers))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
