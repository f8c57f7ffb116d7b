"""Items of Flickr30k Entities as VisualBERT's release makes them (data_flickr): captions, phrases and their regions.

The release reads box numbers from a file beside the features; here they are appended as they stand.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.case_files import Arrays
from harness.checks import Check, within
from harness.finetuning.item_files import FILES, MAX_SIZE, list_checks, size_option, write_item_file
from roibeam.pipelines.data.datasets.entities import ANNOTATIONS, SENTENCES, EntityCounts, read_entities
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, region_shares
from roibeam.pipelines.finetuning.rows import PHRASE, TaskGroup
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP
from roibeam.pipelines.finetuning.systems.task_system import Pieces, lay_out, places_of_phrases
from roibeam.pipelines.finetuning.systems.visualbert import SYSTEM
from roibeam.pipelines.finetuning.tasks.language import EntitiesOptions, entity_groups
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

_FILE = re.compile(rf"{FILES}Flickr30kEntities/({SENTENCES}|{ANNOTATIONS})/([0-9]+\.(?:txt|xml))")


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    config = arrays.take_json_object("config")
    entries, most = config.get("entries"), size_option(config, "max_seq_length")
    options = EntitiesOptions(place="release")
    with tempfile.TemporaryDirectory() as folder:
        pieces = Pieces(load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", Path(folder, "vocab.txt"))))
        for part in (SENTENCES, ANNOTATIONS):
            Path(folder, part).mkdir()
        for name in arrays.names:
            if match := _FILE.fullmatch(name):
                write_item_file(arrays, name, Path(folder, match[1], match[2]))
        groups = list(entity_groups(read_entities(folder, EntityCounts(), rule=options.place), options))
    ours = [_entry(group) for group in groups]
    theirs = [{name: each.get(name) for name in ours[0]} for each in entries] if isinstance(entries, list) else entries
    note = "" if ours == theirs else f"ours are {ours!r:.200}"
    yield within("config/entries", float(ours != theirs), 0, "must be equal", note)
    ids = arrays.take("in/image_ids").tolist()
    items = [_item(arrays, group, ids.index(int(group.images[0])), pieces, most) for group in groups]
    yield from list_checks(arrays, items)


def _entry(group: TaskGroup) -> dict[str, Any]:
    """What the release lists of a caption."""
    (row,) = group.rows
    return {"sentence": row.parts[0].text, "entity_indices": list(row.phrases), "entity_num": len(row.phrases)}


def _item(arrays: Arrays, group: TaskGroup, image: int, pieces: Pieces, most: int) -> dict[str, np.ndarray]:
    """Leaves of one item, whose text is cut to `most` pieces and whose phrases stay where they stood."""
    (row,) = group.rows
    start, end = arrays.take("in/pos_boxes")[image].tolist()
    parts = [arrays.take_finite(f"in/{name}", None, None)[start:end] for name in ("image_features", "spatial_features")]
    boxes = arrays.take_finite("in/image_bb", None, 4)[start:end]
    spans = SYSTEM.text(pieces, row.parts, PHRASE, 1)
    text, whole = (lay_out(spans, pieces_left, BEFORE_SEP) for pieces_left in (most, MAX_SIZE))
    rule = GROUNDING_RULES[group.facts["rule"]]
    return {
        "image_feat_variable": np.concatenate(parts, axis=1),
        "image_dim_variable": np.array(end - start),
        "label": np.stack([region_shares(boxes, right, rule) for right in group.target]),
        "flickr_position": np.array(places_of_phrases(row.phrases, whole)),
        "bert_input_ids": text.ids,
        "bert_input_mask": np.ones(len(text.ids), np.int64),
        "bert_input_type_ids": text.segments,
    }
