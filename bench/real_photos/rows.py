"""What is run on real photos, row by row: commands of roibeam, and what is kept of what came out.

All models are of width 192 and about four layers deep, with new weights and a vocabulary of the captions, but for the
row that starts from MiniLM. Settings were chosen on the photos for validation; those for testing are asked once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from real_photos.work import EXAMPLE, ROOT, Row, Work

MODELS = ROOT / "build" / "real-models"
SEEDS = (0, 1, 2)
SYSTEMS = ("vilbert", "imagebert", "visualbert", "vlbert", "interbert")
CHEAPEST = "imagebert"  # 26 minutes of pre-training (ViLBERT 35, the others more); its layers are those of words alone
BEST = "visualbert"  # R@10 on 300 validation photos: 67.7 and 66.0 (VL-BERT 65.3 and 65.3, ImageBERT 64.3 and 66.0)
FLOORS: Mapping[str, str] = {"words": "words", "minilm": str(MODELS / "minilm")}

# Without dropout: with it matching was still at chance after 1,000 steps, without it at 70 %.
_OF_BERT = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 768, "num_hidden_layers": 4}
_WIDTH = {**_OF_BERT, "hidden_dropout": 0, "attention_dropout": 0}
_IMAGE = {
    "image_num_attention_heads": 6, "image_intermediate_size": 768, "image_hidden_dropout": 0,
    "image_attention_dropout": 0, "region_embedding_dropout": 0, "pair_dropout": 0,
}  # fmt: skip
SIZES: Mapping[str, Mapping[str, object]] = {
    "vlbert": {**_WIDTH, "num_hidden_layers": 4, "coordinate_embedding_size": 192, "region_dropout": 0},
    "visualbert": {**_WIDTH, "num_hidden_layers": 4},
    "imagebert": {**_WIDTH, "num_hidden_layers": 4},
    "vilbert": {
        **_WIDTH, **_IMAGE, "image_hidden_size": 192, "image_num_hidden_layers": 2, "co_attention_size": 192,
        "co_attention_num_heads": 6,
    },
    "interbert": {
        **_WIDTH, **_IMAGE, "num_hidden_layers": 2, "text_num_hidden_layers": 1, "image_num_hidden_layers": 1,
        "pooled_size": 192,
    },
}  # fmt: skip


# What a model reads of a photo: the store, and how many regions, the highest scores first: the photo, then its cells.
MIXES: Mapping[str, tuple[str, int]] = {
    "photo": ("store", 1), "photo-cells": ("store", 17), "photo-cells-detections": ("store", 22),
    "photo-cells-all": ("store", 0), "detections": ("detections", 0), "cells": ("cells", 0),
}  # fmt: skip
MIX = "photo-cells"
OWN_MIX = {"vlbert": "cells"}  # the same: it counts words and regions together, and cannot leave regions out
MIX_STEPS = 2000
STEPS, TUNE_STEPS, BATCH, RATE, TUNE_RATE = 6000, 2000, 64, 1e-3, 3e-4
VAL_PHOTOS = 300  # by which fine-tuned systems are compared
GROUPS = 12  # of a fine-tuning step: a true pair and four wrong ones each
_HIDDEN = {"sampling.word_probability": 0.3}  # more than published: small models with few captions learn sooner
HIDDEN: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(SYSTEMS, _HIDDEN),
    "interbert": {"sampling.word_probability": 0.18, "sampling.region_probability": 0.15},  # anchors of its groups
}
OTHERWISE: Mapping[str, Mapping[str, object]] = {  # further attempts at InterBERT's hidden words
    "deeper": {"model.num_hidden_layers": 4},
    # Words of mismatched pairs are predicted too: they teach it to guess by the caption alone.
    "matched": {"sampling.mismatched_probability": 0.2},
}
TUNED: Mapping[str, object] = {
    "retrieval.distractors": '["caption","image","hard_caption","hard_image"]', "data.validation_groups": 320,
    "model.dropout": 0,
}  # fmt: skip
TEXT_ONLY = ("sampling.with_regions=false", "sampling.text_form=words_only", "model.with_match_head=false")
RATES: Mapping[str, float] = {}  # of rows that learn better with another one
MATCHED = ("vilbert", "imagebert", "interbert")  # systems whose head of pre-training scores a pair
_TRAIN = ("--precision", "bf16", "--threads", "1", "--set", "train.clip_norm=1")


def rows() -> Iterator[Row]:
    yield Row("data", prepare)
    yield Row("store", extract, ["data"])
    for text in FLOORS:
        yield Row(f"floor/{text}", partial(floor, text=text), ["store"])
    yield Row("detections", partial(part, has_cells=False), ["store"])
    yield Row("cells", partial(part, has_cells=True), ["store"])
    for mix, (store, _) in MIXES.items():
        if mix in OWN_MIX.values():
            continue
        yield Row(f"mix/{mix}", partial(mixed, mix=mix), [store])
    for system, seed in (*((system, 0) for system in SYSTEMS), *((CHEAPEST, seed) for seed in SEEDS[1:])):
        name, mix = f"{system}-{seed}", OWN_MIX.get(system, MIX)
        yield Row(f"pretrained/{name}", partial(pretrained, system=system, seed=seed, mix=mix), [MIXES[mix][0]])
        yield Row(f"tuned/{name}", partial(tuned, system=system, seed=seed, mix=mix), [f"pretrained/{name}"])
        if seed == 0 and system != "vlbert":  # which has no matching head
            yield Row(f"zero-shot/{name}", partial(zero_shot, system=system, mix=mix), [f"pretrained/{name}"])
    for name, fields in OTHERWISE.items():
        yield Row(f"{name}/interbert-0", partial(pretrained, system="interbert", fields=fields), ["store"])
    for seed in SEEDS:
        yield Row(f"alone/visualbert-{seed}", partial(words_alone, seed=seed), ["store"])
    seen = {"mix": "photo-cells-detections", "ask": False}
    name = f"{CHEAPEST}-0"
    yield Row(f"seen/{name}", partial(pretrained, system=CHEAPEST, **seen), ["store"])
    yield Row(f"heads/{name}", partial(looked, start=f"seen/{name}"), [f"seen/{name}"])
    for seed in SEEDS:  # claims, with the cheapest system
        name = f"{CHEAPEST}-{seed}"
        new, whole = {"steps": 1, "rate": 1e-12}, {"mix": "photo"}
        yield Row(f"new/{name}", partial(pretrained, system=CHEAPEST, seed=seed, ask=False, **new), ["store"])
        kinds = {"scratch": TUNE_STEPS, **({"longer": STEPS + TUNE_STEPS} if seed == 0 else {})}
        for kind, steps in kinds.items():
            of_row = {"system": CHEAPEST, "seed": seed, "start": "new", "steps": steps}
            yield Row(f"{kind}/{name}", partial(tuned, **of_row), [f"new/{name}"])
        yield Row(f"photo/{name}", partial(pretrained, system=CHEAPEST, seed=seed, ask=False, **whole), ["store"])
        begun = {"start": "photo", **whole}
        yield Row(f"whole/{name}", partial(tuned, system=CHEAPEST, seed=seed, **begun), [f"photo/{name}"])
    bert = {"steps": STEPS // 4, "bert": str(MODELS / "minilm")}  # of 384 x 6, about six times the work of a step
    yield Row("pretrained/minilm-0", partial(pretrained, system=CHEAPEST, **bert), ["store"])
    short = {"name": "minilm", "steps": TUNE_STEPS // 2}
    yield Row("tuned/minilm-0", partial(tuned, system=CHEAPEST, **short), ["pretrained/minilm-0"])
    for text in FLOORS:
        yield Row(f"reranked/{text}", partial(reranked, text=text), [f"floor/{text}", f"tuned/{BEST}-0"])
    for text in FLOORS:
        yield Row(f"full/floor-{text}", partial(floor, text=text, data="all"), ["store"])
    yield Row("full/best", full, [f"tuned/{BEST}-0"])


def prepare(work: Work, row: str) -> dict[str, Any]:
    data = work.folder / "data"
    work.example(row, "prepare.py", work.photos, work.captions, data)
    images = json.loads((data / "all" / work.json).read_text("utf-8"))["images"]
    left_out = len((data / "left_out.txt").read_text("utf-8").splitlines())
    counts = Counter(image["split"] for image in images)
    return {"photos": counts, "captions": sum(len(image["sentences"]) for image in images), "left_out": left_out}


def extract(work: Work, row: str) -> dict[str, Any]:
    plug_ins = f"python:{EXAMPLE}/centernet.py:detect_and_cells", f"python:{EXAMPLE}/efficientnet_lite0.py:describe"
    work.roibeam(
        row, "extract", work.photos, work.store, "--detector", plug_ins[0], "--backbone", plug_ins[1],
        *("--set", "selection.min_regions=27", "--set", "selection.max_regions=53"),
        *("--image-feature", "region", "--workers", "2", "--threads", "1"),
    )  # fmt: skip
    manifest = json.loads((work.store / "manifest.json").read_text("utf-8"))
    return {"records": manifest.get("num_records"), "regions": manifest.get("num_regions")}


def floor(work: Work, row: str, text: str, data: str = "first") -> dict[str, Any]:
    out = work.run_folder(row)
    work.example(row, "floor.py", work.store, work.folder / "data" / data, out, "--text", FLOORS[text])
    return {"chosen": json.loads((out / "chosen.json").read_text("utf-8")), **ranks(out / "test.npy")}


def part(work: Work, row: str, has_cells: bool) -> dict[str, Any]:
    """A store of the photo and its cells alone, or of the detections alone."""
    from roibeam.features.record.region_record import RegionRecord
    from roibeam.features.store import FeatureStore
    from roibeam.features.writing.store_writer import write_store

    with FeatureStore(work.store) as store:
        classes = store.manifest.classes
        assert classes is not None
        places = [classes.index(name) for name in ("photo", "cell")]

        def kept(record: RegionRecord) -> RegionRecord:
            keep = np.isin(record.class_ids, places) == has_cells
            names = ("boxes", "features", "class_ids", "class_scores")
            return replace(record, **{name: getattr(record, name)[keep] for name in names})

        write_store(work.folder / row, map(kept, store), feature_space=row, classes=classes)
    return {}


def mixed(work: Work, row: str, mix: str) -> dict[str, Any]:
    """A short pre-training of the cheapest system, and what it retrieves among 200 photos for validation."""
    store, most = MIXES[mix]
    folder = work.run_folder(row)
    captions = work.folder / "data" / "all" / work.json
    words = _pretraining(folder, work.folder / store, captions, CHEAPEST, most, 0, work.steps(MIX_STEPS))
    watched = ("--set", f"train.evaluate_every={work.steps(MIX_STEPS)}", "--set", "data.validation_retrieval=200")
    work.roibeam(row, *words, "--validation-captions", work.data / work.json, *watched)
    last = json.loads((folder / "evaluation.jsonl").read_text("utf-8").splitlines()[-1])
    return {name: last[name] for name in ("image_to_text_r10", "text_to_image_r10", "masked_word_accuracy")}


def _pretraining(
    folder: Path, store: Path, captions: Path, system: str, most: int, seed: int, steps: int, rate: float = RATE,
    bert: str = "", fields: Mapping[str, object] | None = None,
) -> list[str | Path]:  # fmt: skip
    fields = {
        **{f"model.{name}": value for name, value in SIZES[system].items() if not bert or name not in _OF_BERT},
        **HIDDEN[system],
        **(fields or {}),
        **({} if system == "vlbert" else {"sampling.max_regions": most}),  # it counts words and regions together
    }
    sets = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    return [
        *("pretrain", folder, "--store", store, "--captions", captions, "--system", system, "--model", "small"),
        *(("--from-bert", bert) if bert else ()),
        *("--seed", str(seed), "--steps", str(steps), "--warmup-steps", str(steps // 10)),
        *("--batch-size", str(BATCH), "--learning-rate", str(rate), *_TRAIN, *sets),
    ]  # fmt: skip


def pretrained(
    work: Work, row: str, system: str, mix: str = MIX, seed: int = 0, steps: int = STEPS, rate: float = RATE,
    bert: str = "", ask: bool = True, fields: Mapping[str, object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Trains, and asks about hidden words of the photos for testing."""
    from real_photos.evaluation import Evaluation
    from roibeam.features.store import FeatureStore

    folder, captions = work.run_folder(row), work.folder / "data" / "all" / work.json
    store, most = MIXES[mix]
    work.roibeam(
        row,
        *_pretraining(
            folder,
            work.folder / store,
            captions,
            system,
            most,
            seed,
            work.steps(steps),
            RATES.get(row, rate),
            bert,
            fields,
        ),
    )
    if not ask:
        return {}
    with FeatureStore(work.folder / store) as opened:
        evaluation = Evaluation(folder, opened, work.data / work.json, "test", most)
        return {"words": evaluation.words()}


def zero_shot(work: Work, row: str, system: str, mix: str) -> dict[str, Any]:
    """Retrieval by the matching head of pre-training."""
    from real_photos.evaluation import Evaluation
    from roibeam.features.store import FeatureStore

    (store, most), folder = MIXES[mix], work.run_folder(f"pretrained/{system}-0")
    with FeatureStore(work.folder / store) as opened:
        return Evaluation(folder, opened, work.data / work.json, "test", most).retrieved(folder) or {}


def words_alone(work: Work, row: str, seed: int) -> dict[str, Any]:
    """The same of a model that reads captions without any photo: VisualBERT's layers, which are BERT then."""
    from real_photos.evaluation import Evaluation
    from roibeam.features.store import FeatureStore

    folder, captions = work.run_folder(row), work.folder / "data" / "all" / work.json
    words = _pretraining(folder, work.store, captions, "visualbert", 0, seed, work.steps(STEPS))
    work.roibeam(row, *words, *(word for field in TEXT_ONLY for word in ("--set", field)))
    with FeatureStore(work.store) as opened:
        return {"words": Evaluation(folder, opened, work.data / work.json, "test").words(["none"])}


def looked(work: Work, row: str, start: str) -> dict[str, Any]:
    """At which detection nouns look: of photos for validation, by which a head is chosen, and of those for testing."""
    from real_photos.evaluation import Evaluation
    from roibeam.features.store import FeatureStore

    folder, (store, most) = work.run_folder(start), MIXES["photo-cells-detections"]
    with FeatureStore(work.folder / store) as opened:
        files = opened, work.data / work.json
        return {split: Evaluation(folder, *files, split, most).looks() for split in ("val", "test")}


def tuned(
    work: Work, row: str, system: str, seed: int = 0, start: str = "pretrained", mix: str = MIX, name: str = "",
    steps: int = TUNE_STEPS,
) -> dict[str, Any]:  # fmt: skip
    """Fine-tunes for retrieval; searches 300 validation photos, by which systems are compared, and the test photos."""
    folder, (store, most), steps = work.run_folder(row), MIXES[mix], work.steps(steps)
    before = work.run_folder(f"{start}/{name or system}-{seed}")
    fields = {**TUNED, "layout.max_regions": most, **({"head.kind": "match"} if system in MATCHED else {})}
    sets = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    work.roibeam(
        row, "finetune", folder, "--task", "retrieval", "--from", before, "--store", work.folder / store,
        *("--data", work.data, "--seed", str(seed), "--steps", str(steps), "--batch-size", str(GROUPS)),
        *("--warmup-steps", str(steps // 10), "--learning-rate", str(TUNE_RATE), *_TRAIN, *sets),
    )  # fmt: skip
    val = ranks(_predicted(work, row, folder, "val", store=store, most=VAL_PHOTOS))
    return {"val": val, **ranks(_predicted(work, row, folder, "test", store=store))}


def _predicted(
    work: Work, row: str, run: Path, split: str, *, store: str = "store", data: str = "first", most: int = 0
) -> Path:
    from roibeam.pipelines.finetuning.metrics.retrieval import ids_path

    scores = run / f"{data}-{split}{most or ''}.npy"
    if not ids_path(scores).exists():  # written last
        work.roibeam(
            row, "predict", run, "--store", work.folder / store, "--data", work.folder / "data" / data,
            *("--split", split, "--out", scores, "--precision", "bf16", "--batch-size", "512", "--threads", "1"),
            *(("--max-images", str(most)) if most else ()),
        )  # fmt: skip
    return scores


def full(work: Work, row: str) -> dict[str, Any]:
    """The best system on all captions of the photos for testing."""
    return ranks(_predicted(work, row, work.run_folder(f"tuned/{BEST}-0"), "test", data="all"))


RERANKED = 50  # of a query's candidates, the floor's best
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the system beside the floor, both in standard deviations


def reranked(work: Work, row: str, text: str) -> dict[str, Any]:
    """The floor's best of each query, ordered anew by floor and system; their weights are chosen on validation."""
    run = work.run_folder(f"tuned/{BEST}-0")
    both = {
        split: [np.load(work.run_folder(f"floor/{text}") / f"{split}.npy"), np.load(_predicted(work, row, run, split))]
        for split in ("val", "test")
    }
    spread = [float(each.std()) for each in both["val"]]
    tried = {weight: _reranked(*both["val"], spread, weight) for weight in WEIGHTS}

    def recalls(found: Mapping[str, list[int]]) -> float:
        return sum(float(np.mean(np.array(each) <= cut)) for each in found.values() for cut in (1, 5, 10))

    best = max(tried, key=lambda weight: recalls(tried[weight]))
    return {"weight": best, **_reranked(*both["test"], spread, best)}


def _reranked(floor: np.ndarray, system: np.ndarray, spread: Sequence[float], weight: float) -> dict[str, list[int]]:
    """Ranks, of captions and their photos in one order.

    Args:
        spread: standard deviations of both scores.
    """
    found = {}
    for name, first, second in (("text_to_image", floor, system), ("image_to_text", floor.T, system.T)):
        mixed = first / spread[0] + weight * second / spread[1]
        order = np.argsort(-first, axis=1, kind="stable")
        last = np.take_along_axis(first, order[:, min(RERANKED, len(first)) - 1 :][:, :1], axis=1)
        own, kept = np.diag(mixed), np.diag(first >= last)
        new = (np.where(first >= last, mixed, -np.inf) >= own[:, None]).sum(axis=1)
        old = (first >= np.diag(first)[:, None]).sum(axis=1)
        found[name] = np.where(kept, new, old).tolist()
    return found


def ranks(scores: Path) -> dict[str, list[int]]:
    """The rank of the best sentence of each photo, and that of the photo of each sentence; from 1."""
    from roibeam.pipelines.finetuning.metrics.retrieval import fold_ranks, read_pair_scores

    ((_, found),) = fold_ranks(read_pair_scores(scores))
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("image_to_text", "text_to_image")}


ROWS: Mapping[str, Row] = {row.name: row for row in rows()}
