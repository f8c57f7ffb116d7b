"""`roibeam conformance` on items of the releases' data sets: referring expressions, NLVR2, retrieval and
Flickr30k Entities.

The reference arrays themselves, and that each of them is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from harness.case_files import Arrays
from harness.checks import Check
from harness.finetuning import entity_items, nlvr2_items, referring_items, retrieval_items

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
Checks = Callable[[Arrays], Iterable[Check]]
CASES: dict[str, tuple[Checks, str]] = {
    "finetune_vlbert/data_refcoco": (referring_items.checks, "out/"),
    "finetune_vilbert/data_refer_first": (referring_items.checks, "out/"),
    "finetune_vilbert/data_refer_multitask": (referring_items.checks, "out/"),
    "finetune_vilbert/predictions_first": (referring_items.prediction_checks, "out/refer_"),
    "finetune_vilbert/predictions_multitask": (referring_items.prediction_checks, "out/refer_"),
    "finetune_visualbert/data_nlvr2": (nlvr2_items.checks, "out/"),
    "finetune_vilbert/data_retrieval_first": (retrieval_items.checks, "out/"),
    "finetune_vilbert/data_retrieval_multitask": (retrieval_items.checks, "out/"),
    "finetune_interbert/data_retrieval": (retrieval_items.checks, "out/"),
    "finetune_visualbert/data_flickr": (entity_items.checks, "out/"),
}


def missed(case: str, path: Path | None = None) -> set[str]:
    run, _ = CASES[case]
    return {check.array for check in run(Arrays(path or GOLDENS / f"{case}.npz")) if not check.passed}


@pytest.mark.parametrize("case", CASES)
def test_the_reference_arrays(case: str) -> None:
    run, prefix = CASES[case]
    checks = list(run(Arrays(GOLDENS / f"{case}.npz")))
    assert [check for check in checks if not check.passed] == []
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        assert {name for name in arrays.files if name.startswith(prefix)} <= {check.array for check in checks}


@pytest.mark.parametrize("case", CASES)
def test_every_tampered_array_is_missed(case: str, tmp_path: Path) -> None:
    _, prefix = CASES[case]
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    names = {name for name in content if name.startswith(prefix)}
    for name in names:
        own = content[name]
        content[name] = np.array(json.dumps(["other"])) if own.dtype.kind == "U" else own + np.ones((), own.dtype) * 2
    content["out/other.0.leaf"] = np.zeros(1)  # unknown
    path = tmp_path / Path(f"{case}.npz").name
    np.savez(path, **content)
    unknown = {"out/other.0.leaf"} if prefix == "out/" else set()
    assert missed(case, path) == names | unknown


def test_where_the_release_raised_ours_must_refuse(tmp_path: Path) -> None:
    """The first ViLBERT fails where annotated boxes do not fit; with room for all, nothing is refused."""
    case = "finetune_vilbert/data_refer_first"
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    config = json.loads(str(content["config"]))
    config["max_region_num"]["train_cut"] = config["max_region_num"]["train"]
    content["config"] = np.array(json.dumps(config))
    np.savez(tmp_path / "data_refer_first.npz", **content)
    assert missed(case, tmp_path / "data_refer_first.npz") == {"out/train_cut"}


@pytest.mark.parametrize("most", [3, 5, 8, 11, 16, 20])
def test_captions_of_entities_that_are_cut(most: int, tmp_path: Path) -> None:
    """The release keeps the first pieces and [SEP], `max_seq_length` of them; a phrase stands where it stood in the
    whole sentence, and nothing is left out. So the arrays of shorter rows follow from those of whole ones."""
    case = "finetune_visualbert/data_flickr"
    with np.load(GOLDENS / f"{case}.npz") as arrays:
        content = dict(arrays)
    config = json.loads(str(content["config"]))
    content["config"] = np.array(json.dumps({**config, "max_seq_length": most}))
    lost = 0
    for name in [each for each in content if each.endswith(".bert_input_ids")]:
        item = name.removesuffix("bert_input_ids")
        ids = content[name]
        kept = np.append(ids[: most - 1], ids[-1]) if len(ids) > most else ids
        content[name], content[f"{item}bert_input_mask"] = kept, np.ones(len(kept), np.int64)
        content[f"{item}bert_input_type_ids"] = np.zeros(len(kept), np.int64)
        lost += int((content[f"{item}flickr_position"] >= len(kept) - 1).sum())
    path = tmp_path / "data_flickr.npz"
    np.savez(path, **content)
    assert missed(case, path) == set() and (lost > 0) == (most < 16)
    content["out/0.flickr_position"] = np.minimum(content["out/0.flickr_position"], most - 2)  # the last piece left
    np.savez(path, **content)
    assert missed(case, path) == ({"out/0.flickr_position"} if most < 15 else set())
