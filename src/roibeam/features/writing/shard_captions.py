"""The captions of one shard that `StoreWriter` wrote, `part-00003.<attempt>.captions.jsonl`: with them a stopped writer
goes on, and a finished store grows. Readers take the captions from annotations.parquet.

One line for each image that has captions, in key order: {"image_id": "a", "captions": ["a dog"]}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from roibeam.features.folders.durable_files import write_bytes_atomically

CAPTIONS_SUFFIX = ".captions.jsonl"


def captions_file_name(data_file: str) -> str:
    """Beside `part-00003.<attempt>.lmdb`."""
    return data_file.removesuffix(".lmdb") + CAPTIONS_SUFFIX


def write_shard_captions(data_file: Path, captions: Mapping[str, tuple[str, ...]]) -> None:
    """Writes the file, whole and durable."""
    lines = [json.dumps({"image_id": image_id, "captions": captions[image_id]}) for image_id in sorted(captions)]
    data = "".join(line + "\n" for line in lines).encode("ascii")
    write_bytes_atomically(data_file.with_name(captions_file_name(data_file.name)), data)


def read_shard_captions(data_file: Path) -> dict[str, tuple[str, ...]]:
    """Image id -> captions, in key order.

    Raises:
        ValueError: when the file is missing or damaged.
    """
    path = data_file.with_name(captions_file_name(data_file.name))
    try:
        rows = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        return {str(row["image_id"]): tuple(map(str, row["captions"])) for row in rows}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        manifest = data_file.name.partition(".")[0] + ".json"
        raise ValueError(
            f"{path}: cannot be read ({why}); restore it, or delete {manifest} and write the images of this shard again"
        ) from None
