"""Whether a store has features such as a model was trained on: what they mean must match, the rest is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product

from roibeam.extraction.network.selection_policy import SELECTIONS
from roibeam.features.comparison.feature_spaces import meaning_difference
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint, feature_space_of
from roibeam.features.record.region_record import FEATURE_DTYPES
from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.report.feature_words import choice_note
from roibeam.pipelines.model_files.trained_with import HasSource, digest_of_classes, trained_with


def check_feature_space(found: HasSource, store: FeatureStore) -> list[str]:
    """Whether the model was trained on features such as the store has; a checkpoint that is no run's does not tell.

    What they mean must match. Which boxes were chosen, the dtype and the mode may differ. Of imported features only the
    format and the names of their classes are known.

    Returns:
        What differs and may, in one line; none where nothing does.
    Raises:
        ValueError: when they mean something else, other numbers under the same name; or classes have other names.
    """
    run = trained_with(found)
    if run.feature_space is None:
        return []
    now = store.fingerprint
    known = run.features or _recomputed(run.feature_space, now)
    if not known or known[0].meaning != now.meaning:
        trained, space = run.feature_space[:24], now.feature_space[:24]
        what = meaning_difference(known[0], now) if known else ""
        raise ValueError(
            f"store {store.path} has features of the space {space}, {found.source} was trained on {trained}"
            f"{f' (different: {what})' if what else ''}; extract these images with the detector and options of its "
            f"training store{'' if known else _HOW_OLD_RUNS_TELL}"
        )
    classes = digest_of_classes(store)
    if None not in (run.classes, classes) and run.classes != classes:
        raise ValueError(
            f"store {store.path} has other class names than that which {found.source} was trained on: class 7 of one "
            f"may be another thing in the other; extract or import these images with the same detector's vocabulary"
        )
    note = choice_note("the model was trained on", known, f"store {store.path} has", now)
    return [] if note is None else [note]


_HOW_OLD_RUNS_TELL = "; if only the boxes differ, put that store back where it was"


def _recomputed(trained: str, now: Fingerprint) -> tuple[Fingerprint, ...]:
    """What a digest is of, where it is of the features of `now` in another dtype or with another published selection:
    the hash proves it. Nothing where it is of something else."""
    if trained == now.feature_space:
        return (Fingerprint(trained, {}, now.details),)
    if trained.startswith(IMPORTED_PREFIX):
        return (Fingerprint(trained),)
    if not now.details:
        return ()
    own = now.details.get("regions")
    presets = [json.loads(json.dumps(asdict(preset))) for preset in SELECTIONS.values()]
    for regions, dtype in product([own, *presets], FEATURE_DTYPES):
        details = {**now.details, "regions": regions, "feature_dtype": dtype}
        if feature_space_of(details) == trained:
            return (Fingerprint(trained, {}, details),)
    return ()
