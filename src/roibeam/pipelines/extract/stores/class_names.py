"""Names and number of classes where records have bare ids: of published feature files, and of copies of stores.

Most published files have class ids and neither names nor probabilities, so the last id cannot be known from them: it
comes from the file's facts or its user. Names for a copy are checked to fit the detector of the stores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from roibeam.features.exchange.entry_file import FeatureFile
from roibeam.features.record.fingerprint import ABSENT, detector_part, has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.vocabulary import Vocabulary, check_length, known_classes, read_vocabulary

log = logging.getLogger(__name__)
Entry = TypeVar("Entry")
_MOST_CLASSES = 2**16 - 1  # ids are uint16, and background has one


_ONE_OVER = "; if the file counts background as 0, import it with --background first"


@dataclass(frozen=True)
class ImportedClasses:
    """Attributes:
    number: of foreground classes; None if unknown.
    origin: option or file that the number is from, for messages.
    names: of classes and attributes, as far as they were given.
    """

    number: int | None
    origin: str
    names: Vocabulary

    def checked(self, outcomes: Iterable[Entry]) -> Iterator[Entry]:
        """Passes on what it looks at."""
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
                f"record {image_id!r}: has {what} {largest}, but by {self.origin} ids are 0..{number - 1}; give the "
                f"number or the list of the detector that the features are of"
                f"{_ONE_OVER if what == 'class' and largest == number else ''}"
            )


def _rows_hint(names: Vocabulary, own: int, background: str | None) -> str:
    """Hint for a file whose rows are for one class less than there are names."""
    if background is None and len(names.classes or ()) == own + 1:
        return f"; its rows have {own + 1} values: if they have no background, give --background none"
    return ""


def imported_classes(
    file: FeatureFile, source: Path, *, num_classes: int | None, vocab: str | None, background: str | None = None
) -> ImportedClasses:
    """
    Args:
        num_classes: foreground classes, from the user; None for the file's number.
        vocab: of `read_vocabulary`; gives number and names.
        background: position in class rows, from the user.
    """
    option = f"--vocab {vocab}" if vocab is not None else f"--num-classes {num_classes}"
    own, given = file.details.get("num_classes"), num_classes is not None or vocab is not None
    if num_classes is not None and vocab is not None:
        raise ValueError(f"--num-classes {num_classes}: --vocab {vocab} gives the number of classes; leave one out")
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
    if num_classes is not None and file.names[0] is not None:
        raise ValueError(
            f"{option}: {source} has {len(file.names[0]):,} names of classes; give --vocab, which counts them"
        )
    if vocab is not None:
        names = read_vocabulary(vocab)
        if own is not None:
            check_length(names.classes or (), own, "classes", vocab, hint=_rows_hint(names, own, background))
        if file.details["attributes"] == ABSENT:
            names = Vocabulary(names.classes)
        file.use_names(names.classes, names.attributes)
        names = Vocabulary(names.classes, names.attributes or file.names[1])
        return ImportedClasses(len(names.classes or ()), option, names)
    if file.names[0] is not None:
        if file.fingerprint is None:
            log.info(
                "class ids count the %d names of %s in the order of the alphabet; --vocab gives those of the detector",
                len(file.names[0]), source,
            )  # fmt: skip
        return ImportedClasses(len(file.names[0]), str(source), Vocabulary(*file.names))
    return ImportedClasses(own if num_classes is None else num_classes, option if given else str(source), Vocabulary())


def added_names(stores: Sequence[FeatureStore], vocab: str | None) -> ImportedClasses | None:
    """
    Args:
        vocab: of `read_vocabulary`; None adds none.
    Returns:
        The names, and what checks that no id is beyond them. Attributes have none where the records have none.
    """
    if vocab is None:
        return None
    option, names = f"--vocab {vocab}", read_vocabulary(vocab)
    for store in stores:
        names = _checked(store, names, vocab, option)
    return ImportedClasses(len(names.classes or ()), option, names)


def _checked(store: FeatureStore, names: Vocabulary, vocab: str, option: str) -> Vocabulary:
    if not has_classes(store.fingerprint):
        raise ValueError(f"{option}: {store.folder} has no class ids; leave the option out")
    first = next(store.ids(), None)
    record = None if first is None else store.get(first, copy=False)
    if record is not None and record.attribute_ids is None:
        names = Vocabulary(names.classes)
    for what, given in (("classes", names.classes), ("attributes", names.attributes)):
        own = store.vocabulary[what]
        if own is not None and given is not None and tuple(own) != given:
            raise ValueError(f"{option}: {store.folder} has other names of {what}, the first {own[0]!r}; leave it out")
    number = None if record is None else known_classes(store, record)
    if number is not None:
        check_length(names.classes or (), number, "classes", vocab)
    count = detector_part(store.fingerprint).get("num_attributes")
    if names.attributes is not None and type(count) is int:
        check_length(names.attributes, count, "attributes", vocab)
    return names
