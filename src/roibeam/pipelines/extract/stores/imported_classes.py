"""How many classes, of which names, the detector behind a published feature file has: what the file says, or its user.

Most files have class ids and neither names nor probabilities, so nobody can tell from them which id is the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from roibeam.features.exchange.feature_file import FeatureFile
from roibeam.features.record.imported import ABSENT
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.vocabulary import Vocabulary, check_length, read_vocabulary

Outcome = TypeVar("Outcome")
_MOST_CLASSES = 2**16 - 1  # ids are uint16, and background has one


_ONE_OVER = "; if the file counts background as 0, import it with --background first"


@dataclass(frozen=True)
class ImportedClasses:
    """Attributes:
    number: of foreground classes; None where neither the file nor its user tells.
    told_by: option or file that says so, for messages.
    names: of classes and attributes, as far as they were given.
    """

    number: int | None
    told_by: str
    names: Vocabulary

    def checked(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Passes on what it looks at.

        Raises:
            ValueError: for the first record with a class or attribute that is none of these.
        """
        attributes = self.names.attributes
        for outcome in outcomes:
            if isinstance(outcome, RegionRecord) and outcome.num_regions:
                self._check("class", outcome.image_id, int(outcome.class_ids.max()), self.number)
                if attributes is not None and outcome.attribute_ids is not None:
                    largest = int(outcome.attribute_ids.max())
                    self._check("attribute", outcome.image_id, largest, len(attributes))
            yield outcome

    def _check(self, what: str, image_id: str, largest: int, number: int | None) -> None:
        if number is not None and largest >= number:
            raise ValueError(
                f"record {image_id!r}: has {what} {largest}, but by {self.told_by} ids are 0..{number - 1}; give the "
                f"number or the list of the detector that the features are of"
                f"{_ONE_OVER if what == 'class' and largest == number else ''}"
            )


def _rows_hint(names: Vocabulary, own: int, background: str | None) -> str:
    """What it may be when a file's rows are for one class less than there are names."""
    if background is None and len(names.classes or ()) == own + 1:
        return f"; its rows have {own + 1} values: if they are without background, say --background none"
    return ""


def imported_classes(
    file: FeatureFile, source: Path, *, num_classes: int | None, vocab: str | None, background: str | None = None
) -> ImportedClasses:
    """
    Args:
        num_classes: foreground classes, as the user says; None for what the file tells.
        vocab: of `read_vocabulary`; says number and names.
        background: where the user says that class rows have it.
    Raises:
        ValueError: when both are given, the file says otherwise, or it has no class ids.
    """
    option = f"--vocab {vocab}" if vocab is not None else f"--num-classes {num_classes}"
    own, given = file.details.get("num_classes"), num_classes is not None or vocab is not None
    if num_classes is not None and vocab is not None:
        raise ValueError(f"--num-classes {num_classes}: --vocab {vocab} says how many classes there are; leave one out")
    if given and file.details["classes"] == ABSENT:
        raise ValueError(f"{option}: {source} (layout {file.layout}) has no class ids; leave the option out")
    if background is not None and file.details["classes"] == ABSENT:
        raise ValueError(
            f"--background {background}: {source} (layout {file.layout}) has no classes; leave the option out"
        )
    if num_classes is not None and not 1 <= num_classes <= _MOST_CLASSES:
        raise ValueError(f"--num-classes {num_classes}: must be in 1..{_MOST_CLASSES}, background not counted")
    if None not in (num_classes, own) and num_classes != own:
        raise ValueError(f"{option}: {source} has probabilities of {own} classes and background; leave the option out")
    if vocab is not None:
        names = read_vocabulary(vocab)
        if own is not None:
            check_length(names.classes or (), own, "classes", vocab, hint=_rows_hint(names, own, background))
        if file.details["attributes"] == ABSENT:
            names = Vocabulary(names.classes)
        return ImportedClasses(len(names.classes or ()), option, names)
    return ImportedClasses(own if num_classes is None else num_classes, option if given else str(source), Vocabulary())
