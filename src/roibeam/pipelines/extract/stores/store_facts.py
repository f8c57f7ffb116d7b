"""Facts of a store from its manifest, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from roibeam.features.folders.local_folder import output_folder
from roibeam.features.record.fingerprint import ABSENT, GIVEN, IMPORTED_PREFIX, detector_part, has_grid
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest, UnfinishedRun
from roibeam.features.store import FeatureStore
from roibeam.messages import byte_count, plural, printable
from roibeam.pipelines.data.feature_settings import boxes_words, dtype_words
from roibeam.pipelines.extract.store_page import config_part, warning_of_store

_NUMBER = r"(\d[\d.e+-]*)"
# The toy world's name for the features of its perfect stores.
_PERFECT = re.compile(f"toyworld-perfect-noise{_NUMBER}-missed{_NUMBER}-doubled{_NUMBER}-jitter{_NUMBER}")


def read_manifest(store: str) -> StoreManifest:
    if "://" in store:
        folder = output_folder(store)
        return StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    with FeatureStore(store) as opened:
        return opened.manifest


def data_bytes(manifest: StoreManifest) -> int:
    return sum(shard.data_bytes for shard in manifest.shards)


def store_facts(manifest: StoreManifest, unfinished: UnfinishedRun | None = None) -> dict[str, str]:
    """Counts, sizes, and meaning of the features: a name and a text each, in the order to be displayed. Unknown facts
    are left out."""
    num_bytes = data_bytes(manifest)
    config, space = manifest.config, manifest.fingerprint.feature_space
    warning = warning_of_store(manifest)
    facts = {
        "warning": None if warning is None else f"{warning.title} {warning.text}",
        "unfinished": None if unfinished is None else f"{unfinished}; run the same command again",
        "records": f"{manifest.num_records:,}",
        "regions": f"{manifest.num_regions:,}, {manifest.num_regions / max(manifest.num_records, 1):.1f} per image",
        "dead letters": f"{manifest.num_dead_letters:,}",
        "shards": f"{len(manifest.shards):,}, {byte_count(num_bytes)}",
        "captions": _annotations_row(manifest),
        "features": f"{manifest.feature_dim} x {manifest.feature_dtype}" if manifest.feature_dtype else None,
        **_image_feature_row(manifest),
        "classes": _vocabulary_row(manifest, manifest.classes, "classes"),
        "attributes": _vocabulary_row(manifest, manifest.attributes, "attributes"),
        "source": config_part(config, "source").get("location"),
        **_model_rows(config_part(config, "detector")),
        "conventions": config.get("conventions"),
        "selection": _selection_row(manifest),
        "numerics": json.dumps(manifest.fingerprint.numerics) if manifest.fingerprint.numerics else None,
        **(_rows_of_features_made_elsewhere(manifest) if space.startswith(IMPORTED_PREFIX) else {}),
        **_rows_of_a_copy(manifest),
        "feature kind": f"{_short(manifest.fingerprint.meaning)}: a model that was trained on another kind refuses it",
        "boxes, dtype": _choice_row(manifest),
        "feature space": space,
        "content digest": manifest.content_digest,
    }
    return {name: printable(str(text), 2000) for name, text in facts.items() if text is not None}


def _model_rows(detector: Mapping[str, Any]) -> dict[str, str | None]:
    """Models of other libraries by name, with what their cards say of the licence; weights of others."""
    rows: dict[str, str | None] = {"weights": detector.get("weights") or None}
    for row, part in (("detector", "config"), ("backbone", "backbone")):
        if isinstance(model := detector.get(part), dict) and isinstance(model.get("name"), str):
            told = [model[name] for name in ("weights", "revision") if model.get(name)]
            told += [f"licence {model['license']}"] if model.get("license") else []
            rows[row] = ", ".join([model["name"], *map(str, told)])
    return rows


def _rows_of_features_made_elsewhere(manifest: StoreManifest) -> dict[str, str | None]:
    """Rows that differ for a store that was imported, or written from Python."""
    details = manifest.fingerprint.details
    perfect = _PERFECT.fullmatch(manifest.fingerprint.feature_space.removeprefix(IMPORTED_PREFIX))
    if perfect is not None:
        faults = "noise {}, missed {}, doubled {}, box jitter {}".format(*perfect.groups())
        return {"seen": f"toy world, perfect perception: regions of the scene graph, without a detector; {faults}"}
    if isinstance(manifest.config.get("write"), dict):
        return {"written": "from Python, by StoreWriter"}
    parts = [details.get("format"), f"layout {details['layout']}" if details.get("layout") else None]
    return {
        "weights": "not known: extracted by another code base",
        "imported from": ", ".join(str(each) for each in parts if each) or None,
    }


def _rows_of_a_copy(manifest: StoreManifest) -> dict[str, str]:
    """Sources of a copied store, and changes of its records."""
    copied = manifest.config.get("copy")
    if copied is None:
        return {}
    try:
        options = copied["options"]
        sources = ", ".join(str(source["location"]) for source in copied["sources"])
        changes = [
            f"{name} {options[name]}" for name in ("dtype", "distribution") if options[name] not in (None, "keep")
        ]
        changes += [f"regions {json.dumps(options['regions'])}"] if options["regions"] is not None else []
        if options["asked"] is not None:
            which = "all images but those" if options["asked"].get("without") else "images"
            changes.append(f"{which} of {options['asked']['from']}")
    except (KeyError, TypeError, AttributeError):  # another program's "copy"
        return {"copied from": printable(json.dumps(copied), 200)}
    return {"copied from": printable(sources, 400), "changed": printable(", ".join(changes) or "nothing", 400)}


def _selection_row(manifest: StoreManifest) -> str | None:
    boxes = config_part(manifest.config, "source").get("boxes")
    if boxes:
        return f"none: boxes given in {boxes}"
    if has_grid(manifest.fingerprint):
        return "none: every cell of a grid is a region"
    # Stores of earlier versions do not name it.
    named, regions = manifest.config.get("selection"), manifest.fingerprint.details.get("regions")
    return named or (None if regions is None else json.dumps(regions))


def _short(meaning: str) -> str:
    return meaning if meaning.startswith(IMPORTED_PREFIX) else meaning[:16]


def _choice_row(manifest: StoreManifest) -> str | None:
    parts = [words for words in (boxes_words(manifest.fingerprint), dtype_words(manifest.fingerprint)) if words]
    return f"{', '.join(parts)} (a model may read others; a note says so)" if parts else None


def _image_feature_row(manifest: StoreManifest) -> dict[str, str]:
    """Row on the feature of the whole image; empty where there is none."""
    made = manifest.fingerprint.details.get("image_feature", "none")
    if made == "none":
        return {}
    if not isinstance(made, dict):
        return {"image feature": f"{made}: the detector's own of the whole image, {manifest.feature_dim} wide"}
    spec = str(manifest.config.get("options", {}).get("image_feature", ""))
    weights = spec.partition("=")[2] or made.get("weights", "?")
    return {"image feature": f"{made.get('network', '?')}, {made.get('feature_dim', '?')} wide, weights {weights}"}


def _annotations_row(manifest: StoreManifest) -> str:
    entry = manifest.annotations
    if entry is None:
        return "none"
    kinds = [plural(entry.captions, "caption")] if entry.captions else []
    kinds += [plural(entry.labels, "label")] if entry.labels else []
    return f"{' and '.join(kinds)} of {plural(entry.rows, 'image')}, in {entry.file}"


def _vocabulary_row(manifest: StoreManifest, names: tuple[str, ...] | None, which: str) -> str | None:
    """Meaning of class or attribute ids."""
    details = manifest.fingerprint.details
    origin, count = details.get(which), manifest.config.get(f"num_{which}")
    is_from = "" if origin in (None, ABSENT, GIVEN) else f" from {origin}"
    if names is not None:
        text = f"{len(names):,}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
        return f"{text} ids{is_from}" if is_from else text
    detector = detector_part(manifest.fingerprint)
    if origin == ABSENT or detector.get(f"num_{which}") == 0:
        zeros = which == "classes" and manifest.num_regions
        return "none: class ids and scores are 0 and mean nothing" if zeros else "none"
    if count is None:
        count = detector.get(f"num_{which}", details.get(f"num_{which}"))
    parts = [] if count is None else [f"{count:,}" if isinstance(count, int) else str(count)]
    parts += [f"ids only,{is_from}" if is_from else "ids only"]
    if is_from and count is None and which == "classes":
        parts[-1] += "; how many there are is not known"
    is_native = not manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX)
    return ", ".join(parts) + (" (`roibeam store copy --vocab` adds names)" if is_native else "")
