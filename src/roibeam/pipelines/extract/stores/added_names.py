"""Names of classes and attributes for a copy of stores that have bare ids: read, and checked to fit their detector."""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.features.record.imported import has_classes
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captioned.store_classes import known_classes
from roibeam.pipelines.data.vocabulary import Vocabulary, check_length, read_vocabulary
from roibeam.pipelines.extract.stores.imported_classes import ImportedClasses


def added_names(stores: Sequence[FeatureStore], vocab: str | None) -> ImportedClasses | None:
    """
    Args:
        vocab: of `read_vocabulary`; None adds none.
    Returns:
        The names, and what checks that no id is beyond them. Attributes have none where the records have none.
    Raises:
        ValueError: when a store has other names, another number of classes or attributes, or no class ids.
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
    detector = store.fingerprint.details.get("detector")
    count = detector.get("num_attributes") if isinstance(detector, dict) else None
    if names.attributes is not None and type(count) is int:
        check_length(names.attributes, count, "attributes", vocab)
    return names
