"""`roibeam store export` as parquet or WebDataset: a folder of shards with a data card, written by one process or many.

The card is written first and has all that decides the shards in it, so a folder with the same card goes on: shards that
are there stay. Several processes, each with a part of the shards, write into one folder, of this machine or at a URL.
Records come in key order.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

from roibeam.features.exchange.exact_records import ExactFormat, arrays_of
from roibeam.features.exchange.export_output import check_free
from roibeam.features.folders.local_folder import is_at_url, output_folder
from roibeam.features.record.region_record import FEATURE_DTYPES, RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.features.store_copy import StoredRecord, StoreMerge
from roibeam.messages import plural
from roibeam.pipelines.data.captions.caption_files import AnnotationTable, read_annotations
from roibeam.pipelines.extract.stores.locations import StoreLocation

_CARD = "README.md"
_SHARD_BYTES = 500 * 10**6  # as Hugging Face's datasets cut theirs


def for_store(found: ExactFormat, store: FeatureStore, dtype: str | None, shard_size: int | None = None) -> ExactFormat:
    """The format with the facts, captions and labels of a store."""
    manifest = store.manifest
    facts = {
        "content_digest": manifest.content_digest, "feature_dtype": store.feature_dtype, "dtype": dtype,
        "fingerprint": store.fingerprint.to_json(), **store.vocabulary, "shard": 0,
        "shard_size": shard_size or len(store), "shards": -(-len(store) // (shard_size or len(store))),
    }  # fmt: skip
    texts = None if manifest.annotations is None else AnnotationTable(read_annotations(store)).of
    return found.of_store(facts, texts, dtype)


def shard_size_of(store: FeatureStore, dtype: str | None) -> int:
    """Images of a shard of about 500 MB."""
    itemsize = FEATURE_DTYPES[dtype or store.feature_dtype or "float32"].itemsize
    return max(1, _SHARD_BYTES * len(store) // max(store.num_regions * store.feature_dim * itemsize, 1))


def export_shards(
    store: FeatureStore, out: StoreLocation, found: ExactFormat, *, dtype: str | None, shard_size: int | None,
    part: tuple[int, int], scratch: str | None,
    check: Callable[[ExactFormat, FeatureStore, int, Path, Counter[str]], None],
) -> tuple[int, int, int]:  # fmt: skip
    """Writes shards number `part[0]` - 1, and each `part[1]`-th after it, that are not there yet.

    Args:
        check: reads a shard of a store back; the number is how many records it has.
    Returns:
        records that were written, shards that were written, shards that are missing.
    Raises:
        ValueError: when `out` holds something else.
    """
    size = shard_size or shard_size_of(store, dtype)
    found = for_store(found, store, dtype, size)
    num_shards = found.facts["shards"]
    if not is_at_url(out) and not Path(out).is_dir():
        check_free(Path(out))
        Path(out).mkdir(exist_ok=True)  # another part may make it too
    folder = output_folder(out, scratch)
    suffix = found.suffixes[0]
    names = [f"data-{number:05}-of-{num_shards:05}{suffix}" for number in range(num_shards)]
    card = data_card(store, found, names).encode("utf-8")
    there = {name for name in folder.listing() if not name.startswith(".")}
    if not there:
        # At a URL another export may begin at the same time.
        (folder.put_first if is_at_url(out) else folder.put_bytes)(_CARD, card)
    if (there and _CARD not in there) or folder.read_bytes(_CARD) != card or there - {_CARD, *names}:
        raise ValueError(f"{out} exists already and is not of this export; choose another name, or delete it first")
    records = written = 0
    wanted = {number for number in range(part[0] - 1, num_shards, part[1]) if names[number] not in there}
    for number, rows in _shards(store, size, wanted):
        each = found.of_store({**found.facts, "shard": number}, found.texts, dtype)
        here = nullcontext(folder.local_path) if folder.local_path else folder.scratch(secrets.token_hex(4), scratch)
        with here as work:
            path, expected = work / names[number], min(size, len(store) - number * size)
            each.write(rows, path, check=partial(check, each, store, expected))
            if folder.local_path is None:
                folder.put_file(path, names[number])
        records, written = records + expected, written + 1
    return records, written, len(set(names) - folder.listing().keys())


def in_key_order(store: FeatureStore) -> Iterator[RegionRecord]:
    """Every record, checked. `store import` reads in this order too, and so unpacks each row group once."""
    return next(iter(_shards(store, len(store), {0})))[1]


def _shards(store: FeatureStore, size: int, wanted: set[int]) -> Iterator[tuple[int, Iterator[RegionRecord]]]:
    """Number and records of each shard that is wanted, in key order."""
    entries = (entry for entry in StoreMerge([store]).entries() if isinstance(entry, StoredRecord))
    for number in range(max(wanted, default=-1) + 1):
        own = islice(entries, size)
        if number in wanted:
            yield number, (store.get(entry.image_id, copy=False, check=True) for entry in own)
        for _ in own:
            pass


_COLUMNS = {
    "boxes": "x1 y1 x2 y2 in pixels of the photo",
    "class_ids": "the best class of each region, counted without background",
    "class_scores": "its probability",
    "features": "a vector for each region",
    "image_feature": "a vector of the whole photo",
    "class_distribution": "probabilities of all classes, background last",
    "top_k_class_ids": "the most probable classes of each region; their number in all stands for background",
}


def data_card(store: FeatureStore, found: ExactFormat, names: list[str]) -> str:
    """README.md of a folder of shards, as Hugging Face's hub has it: what is in it, and how to read it."""
    record = next(store.scan(copy=False))
    arrays = arrays_of(record, found.dtype)
    dtype = found.dtype or store.feature_dtype
    suffix = found.suffixes[0]
    decided = ("content_digest", "dtype", "shard_size", "shards")
    facts = {name: value for name, value in found.facts.items() if name in decided}
    lines = [
        "---", "configs:", "- config_name: default", f'  data_files: "*{suffix}"', "tags: [region-features]", "---",
        f"# Region features of {plural(len(store), 'photo')}", "",
        f"{plural(store.num_regions, 'region')} in {plural(len(names), 'shard')}, features of {store.feature_dim} x "
        f"{dtype}. Written by `roibeam store export`; `roibeam store import` makes a store of it again.", "",
        *(f"- `{name}`: {words}" for name, words in _COLUMNS.items() if name in arrays), "",
        *(["`features` are the bits of bfloat16 in uint16: `values.view(ml_dtypes.bfloat16)`.", ""]
          if dtype == "bfloat16" else []),
        "```python", "from datasets import load_dataset",
        f'photos = load_dataset("{found.name}", data_files="*{suffix}", split="train")', "```", "",
        f"Facts of the store: `{json.dumps(facts, sort_keys=True)}`.",
        "Photos and captions keep the terms of their source.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
