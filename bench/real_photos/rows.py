"""What is run on real photos, row by row: commands of roibeam, and what is kept of what came out.

All models are of width 192 and about four layers deep, with new weights and a vocabulary of the captions, but for the row
that starts from MiniLM. Settings were chosen on the photos for validation; those for testing are asked once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from real_photos.work import EXAMPLE, ROOT, Row, Work

MODELS = ROOT / "build" / "real-models"
SEEDS = (0, 1, 2)
SYSTEMS = ("vlbert", "vilbert", "visualbert", "imagebert", "interbert")
CHEAPEST = "vilbert"  # of a step, and of a pair that is scored
FLOORS: Mapping[str, str] = {"words": "words", "minilm": str(MODELS / "minilm")}

_WIDTH = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 768}
_IMAGE = {"image_hidden_size": 192, "image_num_attention_heads": 6, "image_intermediate_size": 768}
SIZES: Mapping[str, Mapping[str, object]] = {
    "vlbert": {**_WIDTH, "num_hidden_layers": 4, "coordinate_embedding_size": 192},
    "visualbert": {**_WIDTH, "num_hidden_layers": 4},
    "imagebert": {**_WIDTH, "num_hidden_layers": 4},
    "vilbert": {
        **_WIDTH, **_IMAGE, "num_hidden_layers": 4, "image_num_hidden_layers": 2, "co_attention_size": 192,
        "co_attention_num_heads": 6,
    },
    "interbert": {
        **_WIDTH, **_IMAGE, "num_hidden_layers": 2, "text_num_hidden_layers": 1, "image_num_hidden_layers": 1,
        "pooled_size": 192,
    },
}  # fmt: skip


def rows() -> Iterator[Row]:
    yield Row("data", prepare)
    yield Row("store", extract, ["data"])
    for text in FLOORS:
        yield Row(f"floor/{text}", partial(floor, text=text), ["store"])


def prepare(work: Work, row: str) -> dict[str, Any]:
    work.example(row, "prepare.py", work.photos, work.captions, work.folder / "data")
    return {}


def extract(work: Work, row: str) -> dict[str, Any]:
    plug_ins = f"python:{EXAMPLE}/centernet.py:detect_and_cells", f"python:{EXAMPLE}/efficientnet_lite0.py:describe"
    work.roibeam(
        row, "extract", work.photos, work.store, "--detector", plug_ins[0], "--backbone", plug_ins[1],
        *("--set", "selection.min_regions=27", "--set", "selection.max_regions=53"),
        *("--image-feature", "region", "--workers", "2", "--threads", "1"),
    )  # fmt: skip
    manifest = json.loads((work.store / "manifest.json").read_text("utf-8"))
    return {"records": manifest.get("num_records"), "regions": manifest.get("num_regions")}


def floor(work: Work, row: str, text: str) -> dict[str, Any]:
    out = work.run_folder(row)
    work.example(row, "floor.py", work.store, work.data, out, "--text", FLOORS[text])
    return {"chosen": json.loads((out / "chosen.json").read_text("utf-8")), **ranks(out / "test.npy")}


def ranks(scores: Path) -> dict[str, list[int]]:
    """Of each photo the rank of its best sentence, of each sentence that of its photo; from 1."""
    from roibeam.pipelines.finetuning.metrics.retrieval import fold_ranks, read_pair_scores

    ((_, found),) = fold_ranks(read_pair_scores(scores))
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("image_to_text", "text_to_image")}


ROWS: Mapping[str, Row] = {row.name: row for row in rows()}
