"""Items of NLVR2 as VisualBERT's release makes them (data_nlvr2): both images in one row.

Which regions are shown and what is right are options of `Nlvr2Options`. Here stands how the release lays an item out.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.case_files import Arrays
from harness.checks import Check
from harness.finetuning.item_files import FILES, list_checks, size_option, write_item_file
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.tasks.nlvr2 import Nlvr2Options, input_regions, nlvr2_groups
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

_SPLIT_FILE = re.compile(rf"{FILES}(train|dev|test1|test2)\.json")


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    options = arrays.take_json_object("config")
    most, pieces = (size_option(options, name) for name in ("image_feature_cap", "max_seq_length"))
    rules = Nlvr2Options(max_regions=most, region_order="file", image_names="with-extension")
    files = [name for name in arrays.names if _SPLIT_FILE.fullmatch(name)]
    if len(files) != 1:
        raise ValueError(f"{arrays.path.name}: {len(files)} files of statements, expected one")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", Path(folder, "vocab.txt")))
        groups = nlvr2_groups(write_item_file(arrays, files[0], Path(folder, "statements.json")), rules)
    items = [_item(arrays, group, tokenizer, rules, pieces) for group in groups]
    yield from list_checks(arrays, items)


def _item(
    arrays: Arrays, group: TaskGroup, tokenizer: CaptionTokenizer, rules: Nlvr2Options, max_pieces: int
) -> dict[str, np.ndarray]:
    """Leaves of one item; a statement whose label is not known stands as a false one."""
    (row,) = group.rows
    features = []
    for number in row.images:
        stored = arrays.take_finite(f"image/{group.images[number]}.features", None, None)
        scores = arrays.take_finite(f"image/{group.images[number]}.confidence", len(stored))
        features.append(stored[input_regions(scores, rules)])
    ids = tokenizer.encode(row.parts[0].text).ids
    ids = np.append(ids[: max_pieces - 1], ids[-1]) if len(ids) > max_pieces else ids
    label = np.array([group.target or 0])
    return {
        "image_feat_variable": np.concatenate(features),
        "image_dim_variable": np.array([sum(map(len, features))]),
        "visual_embeddings_type": np.repeat(np.arange(len(features)), [len(each) for each in features]),
        "label": label,
        "is_random_next": label,
        "bert_input_ids": ids,
        "bert_input_mask": np.ones(len(ids), np.int64),
        "bert_input_type_ids": np.zeros(len(ids), np.int64),
    }
