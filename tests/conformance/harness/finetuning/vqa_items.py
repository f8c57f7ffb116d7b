"""Items and result files of VQA v2: VL-BERT, both ViLBERT releases, VisualBERT (data_vqa*, predictions_*).

Questions, labels, scores, the text and what of an image is shown come from the code that fine-tuning runs, by the
options of each release. Here stands only how a release pads and names them.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, close, guarded
from harness.finetuning.item_files import (
    BATCH,
    FILES,
    MAX_SIZE,
    Item,
    at,
    filled,
    item_checks,
    json_of,
    leaves,
    padded,
    photo_edges,
    same_json,
    size_option,
    stored_record,
    write_item_file,
    write_pickle,
)
from harness.tolerances import METRICS, Allclose
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import prepare_photo
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.common.regions import elements_with_whole_image, region_locations
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.encoder import vilbert_small
from roibeam.model.visualbert.model import visualbert_small
from roibeam.model.vlbert.config import vlbert_small
from roibeam.model.vlbert.embeddings import image_elements
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.systems.named_systems import system_named
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP, LONGEST, RELEASE_CUT, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec, Pieces
from roibeam.pipelines.finetuning.tasks.vqa import VqaFiles, VqaOptions, mirrored_group, vqa_groups
from roibeam.pipelines.finetuning.tasks.vqa_rules import check_same_labels, labels_of_file, predicted_labels
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

_LABELS, _IMDB, _TARGETS = "answers_vqa.txt", ".npy.as.json", "_target.pkl.as.json"
_INSTANCES = "annotations/instances_train2014.json"
_SENTENCES = ("one_sentence", _TWO := "two_sentences")
_PADDED_REGION = -2.0  # of VL-BERT's collation
_MOST_CONTEXT = 32  # pieces of a first sentence that VisualBERT's release never cuts
_TOP = 8  # answers of the list beside ViLBERT's answers, in the first release
_VLBERT = VqaOptions(label_form="without_signs", score_rule="left_out", says_unknown=True)
_VILBERT = VqaOptions(answers="cache/trainval_label2ans.pkl", targets="stored", says_unknown=True)
_VISUALBERT = VqaOptions(question="imdb", says_unknown=True)
_SMALL: Mapping[str, Callable[..., Any]] = {
    "vlbert": vlbert_small, "vilbert": vilbert_small, "visualbert": visualbert_small
}  # fmt: skip


def checks(arrays: Arrays) -> Iterator[Check]:
    """Of a case of items."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(write_item_file(arrays, f"{FILES}vocab.txt", Path(folder, "vocab.txt")))
        case = _Case(arrays, tokenizer, Path(folder))
        if any(name.endswith(_TARGETS) for name in arrays.names):
            yield from _vilbert_checks(case)
        elif any(name.endswith(_IMDB) for name in arrays.names):
            yield from _visualbert_checks(case)
        else:
            yield from _vlbert_checks(case)


def prediction_checks(arrays: Arrays) -> Iterator[Check]:
    """Of the part of a case of result files that is of VQA (ViLBERT, task_utils.py).

    `out/vqa_error` is noted, not compared: the first release takes VQA for a task with choices and raises (README,
    trap 1). Its list beside the answers has the best labels of each question; the second release writes none.
    """
    if "in/vqa_logits" not in arrays:
        return
    labels = arrays.take_json_object("config").get("label2ans")
    if not isinstance(labels, list):
        raise ArrayError("config", "needs label2ans, a list of labels")
    scores = arrays.take_finite("in/vqa_logits", None, len(labels))
    ids = [int(number) for number in arrays.take("in/question_ids", len(scores))]
    said = predicted_labels(list(scores), labels, says_unknown=True)
    yield same_json(arrays, "out/vqa_result_json", _entries(ids, said))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_TOP]
    listed = [[labels[number] for number in row] for row in best]
    has_list = "out/vqa_error" in arrays
    yield same_json(arrays, "out/vqa_others_json", _entries(ids, listed) if has_list else [])
    # Nothing is scored here: the release gives 0 for loss and score of such a task, and counts its rows.
    want = arrays.take("out/vqa_loss_score_n", 3)
    yield close("out/vqa_loss_score_n", np.array([0.0, 0.0, len(scores)]), want, Allclose(METRICS.exact))
    if has_list:
        arrays.take("out/vqa_error")


def _entries(ids: Sequence[int], said: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"question_id": number, "answer": answer} for number, answer in zip(ids, said, strict=True)]


def _submission(arrays: Arrays, groups: Sequence[TaskGroup], labels: Sequence[str], options: VqaOptions) -> list[Any]:
    """Entries of the result file of given scores."""
    scores = arrays.take_finite("in/test_logits", len(groups), len(labels))
    said = predicted_labels(list(scores), labels, says_unknown=options.says_unknown)
    return _entries([int(group.id) for group in groups], said)


def _scores(group: TaskGroup, num_labels: int) -> np.ndarray:
    """(A,) float32."""
    scores = np.zeros(num_labels, np.float32)
    for number, score in group.target.items():
        scores[number] = score
    return scores


def _image_number(group: TaskGroup) -> int:
    return int(group.images[0].rsplit("_", 1)[-1])


@dataclass(frozen=True, eq=False)
class _Case:
    arrays: Arrays
    tokenizer: CaptionTokenizer
    folder: Path

    def one(self, end: str) -> str:
        """The array of a file whose name ends so; ValueError when there is not one."""
        found = [name for name in self.arrays.names if name.startswith(FILES) and name.endswith(end)]
        if len(found) != 1:
            raise ValueError(f"{self.arrays.path.name}: {len(found)} files {FILES}...{end}, expected one")
        return found[0]

    def written(self, end: str) -> str:
        """Path of such a file, under its own name."""
        name = self.one(end)
        return write_item_file(self.arrays, name, self.folder / name.rsplit("/", 1)[-1])

    def pickled(self, end: str) -> str:
        """The same of a pickle that is shown as json."""
        name = self.one(end)
        path = self.folder / name.rsplit("/", 1)[-1].removesuffix(".as.json")
        return write_pickle(json_of(self.arrays, name), path)

    def size(self, name: str) -> int:
        return size_option(self.arrays.take_json_object("config"), name)

    def record(self, group: TaskGroup) -> RegionRecord:
        return stored_record(self.arrays, str(_image_number(group)), group.images[0])

    def batches(self, system: str, groups: Sequence[TaskGroup], layout: LayoutOptions, num_labels: int) -> GroupBatches:
        """As a run makes them; the store is this case."""
        records = {group.images[0]: self.record(group) for group in groups}
        width = next(iter(records.values())).features.shape[1]
        config = _SMALL[system](
            vocab_size=self.tokenizer.vocab_size, region_feature_size=width, max_position_embeddings=MAX_SIZE
        )
        asked, store = OutputSpec(LABEL, num_labels), cast(FeatureStore, records)
        return GroupBatches(system_named(system), config, self.tokenizer, layout, asked, store, loss=None)


# --- VL-BERT ---


def _vlbert_checks(case: _Case) -> Iterator[Check]:
    arrays = case.arrays
    edges = photo_edges(arrays.take_json_object("config"))
    labels = labels_of_file(case.written(_LABELS), _VLBERT.label_form)
    files = VqaFiles(case.written("_questions.json"), case.written("_annotations.json"))
    groups = vqa_groups(files, labels, _VLBERT)
    _check_sizes(case, groups)
    for mode, flip in (("plain", False), ("flip", True)):
        shown = [mirrored_group(group, labels, _VLBERT) if flip else group for group in groups]
        made = partial(_vlbert_items, case, shown, len(labels), edges, flip)
        yield from guarded(f"out/{mode}", partial(_vlbert_mode, arrays, mode, made))
    # The file's own name is that of the release's configuration: noted, not compared.
    name = "out/test_vqa_json"
    written, content = json_of(arrays, name), _submission(arrays, groups, labels, _VLBERT)
    own_name = written.get("file_name") if isinstance(written, dict) else None
    yield same_json(arrays, name, {"file_name": own_name, "content": content})


def _check_sizes(case: _Case, groups: Sequence[TaskGroup]) -> None:
    """The release takes the sizes of photos from COCO's instances; ours are those of the records.

    Raises:
        ArrayError: when they differ.
    """
    name = case.one(_INSTANCES)
    listed = {each["id"]: (each["height"], each["width"]) for each in json_of(case.arrays, name)["images"]}
    for group in groups:
        record = case.record(group)
        if listed.get(_image_number(group)) != (record.height, record.width):
            raise ArrayError(name, f"has another size for {group.images[0]} than image/...size_wh")


def _vlbert_mode(arrays: Arrays, mode: str, make: Callable[[], list[Item]]) -> Iterator[Check]:
    items = make()
    fills = {"boxes": _PADDED_REGION, "question": 0, "im_info": 0, "label": 0}
    batch = {leaf: padded([item[leaf] for item in items], fill) for leaf, fill in fills.items()}
    for number, named in leaves(arrays).get(mode, {}).items():
        yield from item_checks(arrays, named, batch if number == BATCH else at(items, int(number)))


def _vlbert_items(
    case: _Case, groups: Sequence[TaskGroup], num_labels: int, edges: DetectorConfig, flip: bool
) -> list[Item]:
    batches = case.batches("vlbert", groups, LayoutOptions(whole_image="stored"), num_labels)
    items: list[Item] = []
    for group in groups:
        # The release mirrors after it has resized.
        inputs = batches.batch([replace(group, mirrored=False)]).inputs
        elements, (height, width) = image_elements(inputs), (int(each) for each in inputs.image_hw[0])
        # A photo without pixels: its boxes alone are looked at.
        photo = prepare_photo(
            np.zeros((height, width, 3), np.uint8),
            elements.boxes[0].numpy(),
            edges,
            CONVENTIONS["vlbert-e2e"],
            flip=flip,
        )
        items.append(
            {
                "boxes": np.concatenate([photo.boxes.numpy(), elements.features[0].numpy()], axis=1),
                "im_info": np.array([*photo.input_hw[::-1], *photo.scale_xy.tolist()], np.float32),
                "question": _first_part(inputs, case.tokenizer),
                "label": _scores(group, num_labels),
            }
        )
    return items


def _first_part(inputs: VLBatch, tokenizer: CaptionTokenizer) -> np.ndarray:
    """The question's pieces, without [CLS] and what follows."""
    ids = inputs.text_ids[0].numpy()
    return ids[1 : int(np.flatnonzero(ids == tokenizer.sep_id)[0])]


# --- ViLBERT ---


def _vilbert_checks(case: _Case) -> Iterator[Check]:
    arrays = case.arrays
    pieces, regions = case.size("max_seq_length"), case.size("max_region_num")
    labels = labels_of_file(case.pickled("_label2ans.pkl.as.json"), _VILBERT.label_form)
    other = labels_of_file(case.pickled("_ans2label.pkl.as.json"), _VILBERT.label_form)
    check_same_labels(labels, other, "trainval_ans2label.pkl")
    files = VqaFiles(case.written("_questions.json"), targets=case.pickled(_TARGETS))
    # Both releases sort questions and targets by their ids.
    groups = sorted(vqa_groups(files, labels, _VILBERT), key=lambda group: int(group.id))
    # The first release cuts off the [SEP] of a long text.
    layout = LayoutOptions(
        max_pieces=pieces,
        cut=RELEASE_CUT if "first" in arrays.path.stem else LONGEST,
        max_regions=regions - 1,  # one slot is the whole image's
        region_order="file",
        whole_image="all",
    )
    batches = case.batches("vilbert", groups, layout, len(labels))
    for mode, items in leaves(arrays).items():
        for number, named in items.items():
            if mode == "reader":
                shown = next((group for group in groups if _image_number(group) == int(number)), None)
                own = {} if shown is None else _read_image(case.record(shown))
            else:
                group = at(groups, int(number))
                own = _vilbert_item(batches.batch([group]).inputs, group, len(labels), pieces, regions)
            yield from item_checks(arrays, named, own)


def _vilbert_item(inputs: VLBatch, group: TaskGroup, num_labels: int, pieces: int, regions: int) -> Item:
    image = elements_with_whole_image(inputs, count="all")
    features = image.features[0].numpy()
    return {
        "features_first8": filled(features[:, :8], regions),
        "features_row_sum": filled(features.astype(np.float64).sum(axis=1), regions),
        "spatials": filled(image.locations[0].numpy(), regions),
        "image_mask": filled(image.mask[0].numpy().astype(np.int64), regions),
        "question": filled(inputs.text_ids[0].numpy(), pieces),
        "target": _scores(group, num_labels),
        "input_mask": filled(inputs.text_mask[0].numpy().astype(np.int64), pieces),
        "segment_ids": filled(inputs.text_segments[0].numpy(), pieces),
        "question_id": np.array(int(group.id)),
    }


def _read_image(record: RegionRecord) -> Item:
    """What the release's reader gives of an image: all its boxes, the whole image first.

    In `location_pixels` the last number is the share of the area for a region and the area itself for the whole image.
    """
    boxes, hw = torch.from_numpy(record.boxes).double(), torch.tensor([[record.height, record.width]]).double()
    found = region_locations(boxes[None], hw, torch.ones(1, len(boxes), dtype=torch.bool))[0]
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]]).double()
    wide, high = record.width, record.height
    whole_pixels = torch.tensor([[0.0, 0.0, wide, high, wide * high]]).double()
    return {
        "location": torch.cat([whole, found]),
        "location_pixels": torch.cat([whole_pixels, torch.cat([boxes, found[:, 4:]], dim=1)]),
        "num_boxes": np.array(len(boxes) + 1),
    }


# --- VisualBERT ---


def _visualbert_checks(case: _Case) -> Iterator[Check]:
    arrays, most = case.arrays, case.size("max_seq_length")
    labels = labels_of_file(case.written(_LABELS), _VISUALBERT.label_form)
    imdb = case.one(_IMDB)
    path = case.folder / imdb.rsplit("/", 1)[-1].removesuffix(".as.json")
    path.write_bytes(_npy_bytes(json_of(arrays, imdb)))
    groups = vqa_groups(VqaFiles(str(path)), labels, _VISUALBERT)
    batches = case.batches("visualbert", groups, LayoutOptions(max_pieces=most, cut=BEFORE_SEP), len(labels))
    for mode in _SENTENCES:
        for number, named in leaves(arrays).get(mode, {}).items():
            group = at(groups, int(number) if number.isdigit() else len(groups))
            inputs = batches.batch([group]).inputs
            ids, segments = inputs.text_ids[0].numpy(), inputs.text_segments[0].numpy()
            if mode == _TWO:
                ids, segments = _two_sentences(case.tokenizer, group, most)
            own = {
                "image_feat_variable": inputs.region_features[0],
                "image_dim_variable": np.array(inputs.region_features.shape[1]),
                "bert_input_ids": ids,
                "bert_input_mask": np.ones(len(ids), np.int64),
                "bert_input_type_ids": segments,
                "is_random_next": np.array(1),  # the release asks VQA's rows whether texts belong together, always yes
                "label": _scores(group, len(labels)),
            }
            yield from item_checks(arrays, named, own)
    yield same_json(arrays, "out/test_vqa_json", _submission(arrays, groups, labels, _VISUALBERT))


def _npy_bytes(entries: Sequence[Any]) -> bytes:
    """An .npy with one object an entry, as Pythia's files are."""
    array = np.empty(len(entries), object)
    array[:] = list(entries)
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


def _two_sentences(tokenizer: CaptionTokenizer, group: TaskGroup, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces and segments with [MASK] as a sentence of its own, an option of the release that no published run takes.

    Both sentences are cut at the front. The first one loses half of what is too much, and keeps 32 pieces at least. The
    rest goes from the second one, where it may be more than there is: then the row stays too long.
    """
    pieces = Pieces(tokenizer)
    question = pieces.part(group.rows[0].parts[0])
    first = np.concatenate([question.ids, pieces.question_mark(question).ids])
    second = pieces.mask(1).ids
    more = len(first) + len(second) - (most - 3)
    if more > 0:
        of_first = min((more + 1) // 2, max(len(first) - _MOST_CONTEXT, 0))
        first, second = first[of_first:], second[more - of_first :]
    ids = [pieces.cls().ids, first, pieces.sep().ids, *([second, pieces.sep(1).ids] if len(second) else [])]
    segments = [0, 0, 0, 1, 1]
    return np.concatenate(ids), np.repeat(segments[: len(ids)], [len(each) for each in ids])
