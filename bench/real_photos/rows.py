"""What is run on real photos, row by row: commands of roibeam, and what is kept of what came out.

All models are of width 192 and about four layers deep, with new weights and a vocabulary of the captions, but for the row
that starts from MiniLM. Settings were chosen on the photos for validation; those for testing are asked once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
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


# What a model reads of a photo: the store, and how many regions, the highest scores first: the photo, then its cells.
MIXES: Mapping[str, tuple[str, int]] = {
    "photo": ("store", 1), "photo-cells": ("store", 17), "photo-cells-detections": ("store", 0),
    "detections": ("detections", 0),
}  # fmt: skip
MIX = "photo-cells-detections"
MIX_STEPS = 1000
STEPS, TUNE_STEPS, BATCH, RATE, TUNE_RATE = 6000, 2000, 64, 1e-3, 3e-4
GROUPS = 12  # of a fine-tuning step: a true pair and four wrong ones each
JSON = "dataset_flickr8k.json"
_HIDDEN = {"sampling.word_probability": 0.3}  # more than published: small models with few captions learn sooner
HIDDEN: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(SYSTEMS, _HIDDEN),
    "interbert": {"sampling.word_probability": 0.18, "sampling.region_probability": 0.15},  # anchors of its groups
}
TUNED: Mapping[str, object] = {
    "retrieval.distractors": '["caption","image","hard_caption","hard_image"]', "data.validation_groups": 320,
}  # fmt: skip
MATCHED = ("vilbert", "imagebert", "interbert")  # systems whose head of pre-training scores a pair
_TRAIN = ("--precision", "bf16", "--threads", "1", "--set", "train.clip_norm=1")


def rows() -> Iterator[Row]:
    yield Row("data", prepare)
    yield Row("store", extract, ["data"])
    for text in FLOORS:
        yield Row(f"floor/{text}", partial(floor, text=text), ["store"])
    yield Row("detections", detections, ["store"])
    for mix, (store, _) in MIXES.items():
        yield Row(f"mix/{mix}", partial(mixed, mix=mix), [store])
    for system in SYSTEMS:
        yield Row(f"pretrained/{system}-0", partial(pretrained, system=system), ["store"])
    for system in SYSTEMS:
        yield Row(f"tuned/{system}-0", partial(tuned, start=f"pretrained/{system}-0"), [f"pretrained/{system}-0"])


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


def detections(work: Work, row: str) -> dict[str, Any]:
    """A store of the detections alone, without the cells and the whole photo."""
    from roibeam.features.record.region_record import RegionRecord
    from roibeam.features.store import FeatureStore
    from roibeam.features.writing.store_writer import write_store

    def kept(record: RegionRecord) -> RegionRecord:
        keep = record.class_ids < places[0]
        names = ("boxes", "features", "class_ids", "class_scores")
        return replace(record, **{name: getattr(record, name)[keep] for name in names})

    with FeatureStore(work.store) as store:
        classes = store.manifest.classes
        assert classes is not None
        places = [classes.index(name) for name in ("photo", "cell")]  # the last two
        records = map(kept, store)
        write_store(work.folder / "detections", records, feature_space="detections", classes=classes)
    return {}


def mixed(work: Work, row: str, mix: str) -> dict[str, Any]:
    """A short pre-training of the quickest system, and what it retrieves among 200 photos for validation."""
    store, most = MIXES[mix]
    folder = work.run_folder(row)
    words = _pretraining(work, folder, "imagebert", work.folder / store, most, 0, MIX_STEPS)
    watched = ("--set", f"train.evaluate_every={MIX_STEPS}", "--set", "data.validation_retrieval=200")
    work.roibeam(row, *words, "--validation-captions", work.data / JSON, *watched)
    last = json.loads((folder / "evaluation.jsonl").read_text("utf-8").splitlines()[-1])
    return {name: last[name] for name in ("image_to_text_r10", "text_to_image_r10", "masked_word_accuracy")}


def _pretraining(work: Work, folder: Path, system: str, store: Path, most: int, seed: int, steps: int) -> list[Any]:
    fields = {
        **{f"model.{name}": value for name, value in SIZES[system].items()},
        **HIDDEN[system],
        **({} if system == "vlbert" else {"sampling.max_regions": most}),  # it counts words and regions together
    }
    sets = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    return [
        *("pretrain", folder, "--store", store, "--captions", work.folder / "data" / "all" / JSON, "--system", system),
        *("--model", "small", "--seed", str(seed), "--steps", str(steps), "--warmup-steps", str(steps // 10)),
        *("--batch-size", str(BATCH), "--learning-rate", str(RATE), *_TRAIN, *sets),
    ]  # fmt: skip


def pretrained(work: Work, row: str, system: str, mix: str = MIX, seed: int = 0) -> dict[str, Any]:
    from real_photos.asked import Asked
    from roibeam.features.store import FeatureStore

    folder = work.run_folder(row)
    store, most = MIXES[mix]
    work.roibeam(row, *_pretraining(work, folder, system, work.folder / store, most, seed, STEPS))
    with FeatureStore(work.folder / store) as opened:
        asked = Asked(folder, opened, work.data / JSON, "test", most)
        return {"words": asked.words(), "retrieved": asked.retrieved(folder) if seed == 0 else None}


def tuned(work: Work, row: str, start: str, mix: str = MIX, seed: int = 0) -> dict[str, Any]:
    folder, (store, most) = work.run_folder(row), MIXES[mix]
    of_data = ("--store", work.folder / store, "--data", work.data)
    is_matched = start.partition("/")[2].partition("-")[0] in MATCHED
    fields = {**TUNED, "layout.max_regions": most, **({"head.kind": "match"} if is_matched else {})}
    sets = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    work.roibeam(
        row, "finetune", folder, "--task", "retrieval", "--from", work.run_folder(start), *of_data, "--seed", str(seed),
        *("--steps", str(TUNE_STEPS), "--warmup-steps", str(TUNE_STEPS // 10), "--batch-size", str(GROUPS)),
        *("--learning-rate", str(TUNE_RATE), *_TRAIN, *sets),
    )  # fmt: skip
    said = folder / "test.npy"
    if not said.exists():
        work.roibeam(
            row, "predict", folder, *of_data, "--split", "test", "--out", said, "--precision", "bf16", "--batch-size", "512"
        )  # fmt: skip
    return ranks(said)


def ranks(scores: Path) -> dict[str, list[int]]:
    """Of each photo the rank of its best sentence, of each sentence that of its photo; from 1."""
    from roibeam.pipelines.finetuning.metrics.retrieval import fold_ranks, read_pair_scores

    ((_, found),) = fold_ranks(read_pair_scores(scores))
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("image_to_text", "text_to_image")}


ROWS: Mapping[str, Row] = {row.name: row for row in rows()}
