"""Items of NLVR2 (data_nlvr2) and of Flickr30k Entities (data_flickr) as VisualBERT's release makes them.

Which regions are shown and what is right are options of the tasks. Here stands how the release lays an item out.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.checks import Check, within
from harness.finetuning.item_files import FILES, MAX_SIZE, ItemCase, bert_leaves, cut_text
from roibeam.pipelines.data.datasets.entities import ANNOTATIONS, SENTENCES, EntityCounts, read_entities
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, region_shares
from roibeam.pipelines.finetuning.rows import PHRASE, TaskGroup
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP
from roibeam.pipelines.finetuning.systems.task_system import Pieces, lay_out, places_of_phrases
from roibeam.pipelines.finetuning.systems.visualbert import SYSTEM
from roibeam.pipelines.finetuning.tasks.language import EntitiesOptions, entity_groups
from roibeam.pipelines.finetuning.tasks.nlvr2 import Nlvr2Options, input_regions, nlvr2_groups

_ENTITY_FILE = re.compile(rf"{FILES}Flickr30kEntities/({SENTENCES}|{ANNOTATIONS})/([0-9]+\.(?:txt|xml))")


# --- NLVR2: both images in one row ---


def nlvr2_checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items."""
    most, pieces = (case.size(name) for name in ("image_feature_cap", "max_seq_length"))
    rules = Nlvr2Options(max_regions=most, region_order="file", image_names="with-extension")
    groups = nlvr2_groups(case.written(".json"), rules)
    yield from case.list_checks([_nlvr2_item(case, group, rules, pieces) for group in groups])


def _nlvr2_item(case: ItemCase, group: TaskGroup, rules: Nlvr2Options, max_pieces: int) -> dict[str, np.ndarray]:
    """Leaves of one item; a statement whose label is not known stands as a false one."""
    (row,) = group.rows
    features = []
    for number in row.images:
        stored = case.take_finite(f"image/{group.images[number]}.features", None, None)
        scores = case.take_finite(f"image/{group.images[number]}.confidence", len(stored))
        features.append(stored[input_regions(scores, rules)])
    label = np.array([group.target or 0])
    return {
        "image_feat_variable": np.concatenate(features),
        "image_dim_variable": np.array([sum(map(len, features))]),
        "visual_embeddings_type": np.repeat(np.arange(len(features)), [len(each) for each in features]),
        "label": label,
        "is_random_next": label,
        **bert_leaves(cut_text(case.tokenizer.encode(row.parts[0].text).ids, max_pieces)),
    }


# --- Flickr30k Entities: captions, phrases and their regions ---


def entity_checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items. The release reads box numbers from a file beside the features; here they are appended as
    they stand."""
    entries, most = case.options.get("entries"), case.size("max_seq_length")
    options = EntitiesOptions(place="release")
    for part in (SENTENCES, ANNOTATIONS):
        (case.folder / part).mkdir()
    for name in case.names:
        if match := _ENTITY_FILE.fullmatch(name):
            case.write(name, f"{match[1]}/{match[2]}")
    groups = list(entity_groups(read_entities(str(case.folder), EntityCounts(), rule=options.place), options))
    ours = [_entry(group) for group in groups]
    theirs = [{name: each.get(name) for name in ours[0]} for each in entries] if isinstance(entries, list) else entries
    note = "" if ours == theirs else f"ours are {ours!r:.200}"
    yield within("config/entries", float(ours != theirs), 0, "must be equal", note)
    yield from case.list_checks([_entity_item(case, group, most) for group in groups])


def _entry(group: TaskGroup) -> dict[str, Any]:
    """What the release lists of a caption."""
    (row,) = group.rows
    return {"sentence": row.parts[0].text, "entity_indices": list(row.phrases), "entity_num": len(row.phrases)}


def _entity_item(case: ItemCase, group: TaskGroup, most: int) -> dict[str, np.ndarray]:
    """Leaves of one item, whose text is cut to `most` pieces and whose phrases stay where they stood."""
    (row,) = group.rows
    image = case.take("in/image_ids").tolist().index(int(group.images[0]))
    start, end = case.take("in/pos_boxes")[image].tolist()
    parts = [case.take_finite(f"in/{name}", None, None)[start:end] for name in ("image_features", "spatial_features")]
    boxes = case.take_finite("in/image_bb", None, 4)[start:end]
    spans = SYSTEM.text(Pieces(case.tokenizer), row.parts, PHRASE, 1)
    text, whole = (lay_out(spans, pieces_left, BEFORE_SEP) for pieces_left in (most, MAX_SIZE))
    rule = GROUNDING_RULES[group.facts["rule"]]
    return {
        "image_feat_variable": np.concatenate(parts, axis=1),
        "image_dim_variable": np.array(end - start),
        "label": np.stack([region_shares(boxes, right, rule) for right in group.target]),
        "flickr_position": np.array(places_of_phrases(row.phrases, whole)),
        **bert_leaves(text.ids, text.segments),
    }
