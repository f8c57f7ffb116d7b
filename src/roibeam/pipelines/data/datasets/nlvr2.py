"""NLVR2 (lil.nlp.cornell.edu/nlvr): {train,dev,test1,test2}.json, which hold one json object on each line.

A statement is about two images, <identifier without its last number>-img0.png and -img1.png. uclanlp/visualbert takes
off the last character instead, which names no image where a pair has ten statements. The labels of a test file may be
kept back: then its lines have no "label".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roibeam.pipelines.common.image_ids import is_utf8, path_below
from roibeam.pipelines.data.datasets.image_boxes import excerpt
from roibeam.pipelines.data.datasets.rows import read_json_lines

_LABELS: dict[str | None, bool] = {"True": True, "False": False}


@dataclass(frozen=True)
class Nlvr2Statement:
    """Attributes:
    where: file and line, for errors.
    identifier: split-set-pair-sentence.
    split: first part of its identifier: train, dev, test1 or test2.
    images: file names of the left and the right one.
    sentence: as written.
    is_true: of these images; None without a label.
    """

    where: str
    identifier: str
    split: str
    images: tuple[str, str]
    sentence: str
    is_true: bool | None


def read_nlvr2(path: str) -> Iterator[Nlvr2Statement]:
    """The statements of a file in its order."""
    for where, row in read_json_lines(path):
        identifier, sentence, label = row.get("identifier"), row.get("sentence"), row.get("label")
        if not isinstance(identifier, str) or len(identifier.split("-")) != 4 or not is_utf8(identifier):
            raise ValueError(
                f"{where}: expected NLVR2's identifier, <split>-<set>-<pair>-<sentence>, got {excerpt(identifier)}"
            )
        if not isinstance(sentence, str) or not is_utf8(sentence):
            raise ValueError(f"{where}: sentence must be a text, got {excerpt(sentence)}")
        if "label" in row and (not isinstance(label, str) or label not in _LABELS):
            raise ValueError(f'{where}: label must be "True" or "False", got {excerpt(label)}')
        split, *_ = identifier.split("-")
        pair = path_below(identifier.rpartition("-")[0])
        yield Nlvr2Statement(
            where, identifier, split, (f"{pair}-img0.png", f"{pair}-img1.png"), sentence, _LABELS.get(label)
        )
