"""What a manifest tells of its store, in words for people."""

from __future__ import annotations

import json

from roibeam.features.counted import byte_count, counted
from roibeam.features.folders.folder_choice import output_folder
from roibeam.features.printable import printable
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.imported import ABSENT, num_classes_of
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
from roibeam.features.store import FeatureStore


def read_manifest(store: str) -> StoreManifest:
    """That of a store in a folder or at a URL."""
    if "://" in store:
        folder = output_folder(store)
        return StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    with FeatureStore(store) as opened:
        return opened.manifest


def data_bytes(manifest: StoreManifest) -> int:
    """Bytes of all data files."""
    return sum(shard.data_bytes for shard in manifest.shards)


def store_facts(manifest: StoreManifest) -> dict[str, str]:
    """Counts, sizes, and what the features mean: a name and a text each, in the order to be shown."""
    num_bytes = data_bytes(manifest)
    return {
        "records": f"{manifest.num_records:,}",
        "regions": f"{manifest.num_regions:,}, {manifest.num_regions / max(manifest.num_records, 1):.1f} per image",
        "dead letters": f"{manifest.num_dead_letters:,}",
        "shards": f"{len(manifest.shards):,}, {byte_count(num_bytes)}",
        "captions": _annotations_row(manifest),
        "features": f"{manifest.feature_dim} x {manifest.feature_dtype}",
        **_image_feature_row(manifest),
        "classes": _vocabulary_row(manifest.classes, num_classes_of(manifest.fingerprint)),
        "attributes": _vocabulary_row(
            manifest.attributes, manifest.fingerprint.details.get("detector", {}).get("num_attributes")
        ),
        "source": manifest.config.get("source", {}).get("location", "?"),
        "weights": manifest.config.get("detector", {}).get("weights", "?"),
        "conventions": manifest.config.get("conventions", "?"),
        "selection": _selection_row(manifest),
        "numerics": json.dumps(manifest.fingerprint.numerics),
        **_rows_of_an_import(manifest),
        **_rows_of_a_copy(manifest),
        "feature space": manifest.fingerprint.feature_space,
        "content digest": manifest.content_digest,
    }


def _rows_of_an_import(manifest: StoreManifest) -> dict[str, str]:
    """What is told otherwise of a store that another code base extracted."""
    if not manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX):
        return {}
    details = manifest.fingerprint.details
    rows = {
        "weights": "not known: extracted by another code base",
        "conventions": "not known",
        "selection": "not known",
        "numerics": "not known",
        "imported from": f"{details.get('format')}, layout {details.get('layout')}",
    }
    if details.get("classes") == ABSENT:
        rows["classes"] = "none in the source: class ids and scores are 0 and mean nothing"
    elif manifest.classes is not None:
        rows["classes"] = f"{_vocabulary_row(manifest.classes, None)} ids from {details.get('classes')}"
    elif (count := num_classes_of(manifest.fingerprint)) is not None:
        rows["classes"] = f"{count:,}, ids only, from {details.get('classes')}"
    else:
        rows["classes"] = f"ids only, from {details.get('classes')}; how many there are is not known"
    if details.get("attributes") == ABSENT:
        rows["attributes"] = "none in the source"
    elif manifest.attributes is not None:
        rows["attributes"] = f"{_vocabulary_row(manifest.attributes, None)} ids from {details.get('attributes')}"
    else:
        rows["attributes"] = f"ids only, from {details.get('attributes')}"
    return rows


def _rows_of_a_copy(manifest: StoreManifest) -> dict[str, str]:
    """Where a copied store comes from, and what of its records was changed."""
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
        changes += [f"images of {options['asked']['from']}"] if options["asked"] is not None else []
    except (KeyError, TypeError):  # somebody else's idea of "copy"
        return {"copied from": printable(json.dumps(copied), 200)}
    return {"copied from": printable(sources, 400), "changed": printable(", ".join(changes) or "nothing", 400)}


def _selection_row(manifest: StoreManifest) -> str:
    boxes = manifest.config.get("source", {}).get("boxes")
    if boxes:
        return f"none: boxes given in {boxes}"
    # Stores of earlier versions do not name it.
    return manifest.config.get("selection") or json.dumps(manifest.fingerprint.details.get("regions", {}))


def _image_feature_row(manifest: StoreManifest) -> dict[str, str]:
    """What the feature of the whole image is; nothing where there is none."""
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
    kinds = [counted(entry.captions, "caption")] if entry.captions else []
    kinds += [counted(entry.labels, "label")] if entry.labels else []
    return f"{' and '.join(kinds)} of {counted(entry.rows, 'image')}, in {entry.file}"


def _vocabulary_row(names: tuple[str, ...] | None, count: int | None) -> str:
    if names is None:
        return f"{count if count is not None else '?'}, ids only (--vocab names them)"
    return f"{len(names):,}: {', '.join(names[:4])}, ..."
