"""Items and result files of VQA v2: VL-BERT, both ViLBERT releases, VisualBERT (data_vqa*, predictions_*).

Questions, labels, scores, the text and what of an image is shown come from the code that fine-tuning runs, by the
options of each release. Here stands only how a release pads and names them.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.case_files import ArrayError
from harness.checks import Check, close
from harness.finetuning.item_files import BATCH, Item, ItemCase, at, bert_leaves, padded
from harness.tolerances import METRICS, Allclose
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import prepare_photo
from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.regions import region_locations
from roibeam.model.vlbert.embeddings import image_elements
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec, Pieces
from roibeam.pipelines.finetuning.tasks.vqa import VqaFiles, VqaOptions, mirrored_group, vqa_groups
from roibeam.pipelines.finetuning.tasks.vqa_rules import check_same_labels, labels_of_file, predicted_labels
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

_LABELS, _IMDB, _TARGETS = "answers_vqa.txt", ".npy.as.json", "_target.pkl.as.json"
_SENTENCES = ("one_sentence", _TWO := "two_sentences")
_PADDED_REGION = -2.0  # of VL-BERT's collation
_MOST_CONTEXT = 32  # pieces of a first sentence that VisualBERT's release never cuts
_TOP = 8  # answers of the list beside ViLBERT's answers, in the first release
_VLBERT = VqaOptions(label_form="without_signs", score_rule="left_out", says_unknown=True)
_VILBERT = VqaOptions(answers="cache/trainval_label2ans.pkl", targets="stored", says_unknown=True)
_VISUALBERT = VqaOptions(question="imdb", says_unknown=True)


def checks(case: ItemCase) -> Iterator[Check]:
    """Of a case of items."""
    by_file = {_TARGETS: _vilbert_checks, _IMDB: _visualbert_checks, "": _vlbert_checks}
    end = next(end for end in by_file if any(name.endswith(end) for name in case.names))
    return by_file[end](case)


def prediction_checks(case: ItemCase) -> Iterator[Check]:
    """Of the part of a case of result files that is of VQA (ViLBERT, task_utils.py).

    `out/vqa_error` is noted, not compared: the first release takes VQA for a task with choices and raises (README,
    trap 1). Its list beside the answers has the best labels of each question; the second release writes none.
    """
    if "in/vqa_logits" not in case:
        return
    labels = case.options.get("label2ans")
    if not isinstance(labels, list):
        raise ArrayError("config", "needs label2ans, a list of labels")
    scores = case.take_finite("in/vqa_logits", None, len(labels))
    ids = [int(number) for number in case.take("in/question_ids", len(scores))]
    said = predicted_labels(list(scores), labels, says_unknown=True)
    yield case.same_json("out/vqa_result_json", _entries(ids, said))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_TOP]
    listed = [[labels[number] for number in row] for row in best]
    has_list = "out/vqa_error" in case
    yield case.same_json("out/vqa_others_json", _entries(ids, listed) if has_list else [])
    # Nothing is scored here: the release gives 0 for loss and score of such a task, and counts its rows.
    want = case.take("out/vqa_loss_score_n", 3)
    yield close("out/vqa_loss_score_n", np.array([0.0, 0.0, len(scores)]), want, Allclose(METRICS.exact))
    if has_list:
        case.take("out/vqa_error")


def _entries(ids: Sequence[int], said: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"question_id": number, "answer": answer} for number, answer in zip(ids, said, strict=True)]


def _submission(case: ItemCase, groups: Sequence[TaskGroup], labels: Sequence[str], options: VqaOptions) -> list[Any]:
    """Entries of the result file of given scores."""
    scores = case.take_finite("in/test_logits", len(groups), len(labels))
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


def _records(case: ItemCase, groups: Sequence[TaskGroup]) -> dict[str, RegionRecord]:
    return {group.images[0]: case.record(str(_image_number(group)), group.images[0]) for group in groups}


# --- VL-BERT ---


def _vlbert_checks(case: ItemCase) -> Iterator[Check]:
    labels = labels_of_file(case.written(_LABELS), _VLBERT.label_form)
    groups = vqa_groups(VqaFiles(case.written("_questions.json"), case.written("_annotations.json")), labels, _VLBERT)
    records = _records(case, groups)
    _check_sizes(case, groups, records)
    for mode, flip in (("plain", False), ("flip", True)):
        shown = [mirrored_group(group, labels, _VLBERT) if flip else group for group in groups]
        yield from case.mode_checks(mode, partial(_vlbert_items, case, shown, records, len(labels), flip))
    # The file's own name is that of the release's configuration: noted, not compared.
    name = "out/test_vqa_json"
    written, content = case.json(name), _submission(case, groups, labels, _VLBERT)
    own_name = written.get("file_name") if isinstance(written, dict) else None
    yield case.same_json(name, {"file_name": own_name, "content": content})


def _check_sizes(case: ItemCase, groups: Sequence[TaskGroup], records: Mapping[str, RegionRecord]) -> None:
    """The release takes the sizes of photos from COCO's instances; ours are those of the records. Raises ArrayError
    when they differ."""
    name = case.one("annotations/instances_train2014.json")
    listed = {each["id"]: (each["height"], each["width"]) for each in case.json(name)["images"]}
    for group in groups:
        record = records[group.images[0]]
        if listed.get(_image_number(group)) != (record.height, record.width):
            raise ArrayError(name, f"has another size for {group.images[0]} than image/...size_wh")


def _vlbert_items(
    case: ItemCase, groups: Sequence[TaskGroup], records: Mapping[str, RegionRecord], num_labels: int, flip: bool
) -> Callable[[str], Item]:
    batches = case.batches("vlbert", records, LayoutOptions(whole_image="stored"), OutputSpec(LABEL, num_labels))
    items: list[Item] = []
    for group in groups:
        # The release mirrors after it has resized.
        inputs = batches.batch([replace(group, mirrored=False)]).inputs
        elements, (height, width) = image_elements(inputs), (int(each) for each in inputs.image_hw[0])
        # A photo without pixels: its boxes alone are looked at.
        blank, boxes = np.zeros((height, width, 3), np.uint8), elements.boxes[0].numpy()
        photo = prepare_photo(blank, boxes, case.edges, CONVENTIONS["vlbert-e2e"], flip=flip)
        ids = inputs.text_ids[0].numpy()
        items.append(
            {
                "boxes": np.concatenate([photo.boxes.numpy(), elements.features[0].numpy()], axis=1),
                "im_info": np.array([*photo.input_hw[::-1], *photo.scale_xy.tolist()], np.float32),
                # Without [CLS] and what follows the question.
                "question": ids[1 : int(np.flatnonzero(ids == case.tokenizer.sep_id)[0])],
                "label": _scores(group, num_labels),
            }
        )
    fills = {"boxes": _PADDED_REGION, "question": 0, "im_info": 0, "label": 0}
    batch = {leaf: padded([item[leaf] for item in items], fill) for leaf, fill in fills.items()}
    return lambda number: batch if number == BATCH else at(items, int(number))


# --- ViLBERT ---


def _vilbert_checks(case: ItemCase) -> Iterator[Check]:
    labels = labels_of_file(case.pickled("_label2ans.pkl.as.json"), _VILBERT.label_form)
    other = labels_of_file(case.pickled("_ans2label.pkl.as.json"), _VILBERT.label_form)
    check_same_labels(labels, other, "trainval_ans2label.pkl")
    files = VqaFiles(case.written("_questions.json"), targets=case.pickled(_TARGETS))
    # Both releases sort questions and targets by their ids.
    groups = sorted(vqa_groups(files, labels, _VILBERT), key=lambda group: int(group.id))
    records = _records(case, groups)
    batches = case.vilbert_batches(records, OutputSpec(LABEL, len(labels)))
    for mode, items in case.leaves().items():
        for number, named in items.items():
            if mode == "reader":
                shown = next((group for group in groups if _image_number(group) == int(number)), None)
                own = {} if shown is None else _read_image(records[shown.images[0]])
            else:
                group = at(groups, int(number))
                found = case.vilbert_leaves(batches.batch([group]).inputs)
                own = {"question" if leaf == "text" else leaf: rows[0] for leaf, rows in found.items()}
                own |= {"target": _scores(group, len(labels)), "question_id": np.array(int(group.id))}
            yield from case.item_checks(named, own)


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


def _visualbert_checks(case: ItemCase) -> Iterator[Check]:
    most = case.size("max_seq_length")
    labels = labels_of_file(case.written(_LABELS), _VISUALBERT.label_form)
    imdb = case.one(_IMDB)
    path = case.folder / imdb.rpartition("/")[2].removesuffix(".as.json")
    path.write_bytes(_npy_bytes(case.json(imdb)))
    groups = vqa_groups(VqaFiles(str(path)), labels, _VISUALBERT)
    layout = LayoutOptions(max_pieces=most, cut=BEFORE_SEP)
    batches = case.batches("visualbert", _records(case, groups), layout, OutputSpec(LABEL, len(labels)))
    for mode in _SENTENCES:
        for number, named in case.leaves().get(mode, {}).items():
            group = at(groups, int(number) if number.isdigit() else len(groups))
            inputs = batches.batch([group]).inputs
            ids, segments = inputs.text_ids[0].numpy(), inputs.text_segments[0].numpy()
            if mode == _TWO:
                ids, segments = _two_sentences(case.tokenizer, group, most)
            own = {
                "image_feat_variable": inputs.region_features[0],
                "image_dim_variable": np.array(inputs.region_features.shape[1]),
                **bert_leaves(ids, segments),
                "is_random_next": np.array(1),  # the release asks VQA's rows whether texts belong together, always yes
                "label": _scores(group, len(labels)),
            }
            yield from case.item_checks(named, own)
    yield case.same_json("out/test_vqa_json", _submission(case, groups, labels, _VISUALBERT))


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
