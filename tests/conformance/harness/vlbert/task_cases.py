"""VL-BERT's task models against their reference arrays: VQA, VCR and RefCOCO+ (goldens/vlbert/README.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.case_files import ArrayError
from harness.checks import Check, equal, within
from harness.model_case import ModelArrays
from harness.tolerances import VLBERT
from harness.vlbert.case import VLBertCase, batch_of, open_case
from roibeam.model.common.losses import SumCount
from roibeam.model.common.masking import overlaps_with_inclusive_sides
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.vlbert.config import VLBertTaskConfig
from roibeam.model.vlbert.embeddings import VLBertImageElements
from roibeam.model.vlbert.tasks import JoinedText, VLBertForReferring, VLBertForVcr, VLBertForVqa, join_question_answer


class TaskInputs(NamedTuple):
    """What a task's model reads of a case: a row for each question, or for each of its choices.

    Attributes:
        elements: of each row of the batch.
    """

    text: JoinedText
    elements: VLBertImageElements
    batch: VLBatch


def vqa_inputs(case: VLBertCase) -> TaskInputs:
    elements = case.elements()
    question = case.arrays.whole("in/question", 0, case.config.vocab_size, len(elements.mask), None)
    answer = question.new_full((len(question), 1), case.token("[MASK]"))
    return _one_text(case, elements, question, answer, "question_answer")


def refcoco_inputs(case: VLBertCase) -> TaskInputs:
    elements = case.elements()
    expression = case.arrays.whole("in/expression", 0, case.config.vocab_size, len(elements.mask), None)
    # [CLS] expression [SEP]: an empty answer in one sentence.
    return _one_text(case, elements, expression, expression.new_zeros(len(expression), 0), "one_sentence")


def _one_text(
    case: VLBertCase, elements: VLBertImageElements, question: Tensor, answer: Tensor, order: str
) -> TaskInputs:
    text = join_question_answer(question, answer, cls_id=case.token("[CLS]"), sep_id=case.token("[SEP]"), order=order)
    hw = case.image_hw(len(question))
    return TaskInputs(text, elements, batch_of(text.ids, text.mask, text.segments, elements, hw))


def vcr_inputs(case: VLBertCase) -> tuple[TaskInputs, VLBertImageElements, int]:
    """And the elements of each question, and how many choices it has."""
    arrays, config = case.arrays, case.config
    shape = arrays.take("in/boxes", None, None, 6).shape
    shown = case.elements(valid_column=3, cell_weights=arrays.floats("in/masks", *shape[:2], None, None))
    questions, count = shown.mask.shape
    answers = arrays.whole("in/answer_choices", -2, max(config.vocab_size, count), questions, None, None, 3)
    choices = answers.shape[1]
    question = arrays.whole("in/question", -2, max(config.vocab_size, count), questions, None, 3)
    text = _choice_texts(case, question, answers, count)
    elements = VLBertImageElements(*(part.repeat_interleave(choices, dim=0) for part in shown))
    batch = batch_of(
        text.ids,
        text.mask,
        text.segments,
        elements,
        case.image_hw(questions).repeat_interleave(choices, dim=0),
        aligned_words=_words_of_regions(text.tags, count - 1),
        region_classes=arrays.floats("in/boxes")[:, 1:, 5].long().repeat_interleave(choices, dim=0),
    )
    return TaskInputs(text, elements, batch), shown, choices


def vqa_checks(arrays: ModelArrays) -> Iterator[Check]:
    case = open_case(arrays, "vqa")
    assert isinstance(case.config, VLBertTaskConfig)
    model: VLBertForVqa = case.build(VLBertForVqa)
    text, elements, batch = vqa_inputs(case)
    yield from _text_checks(case, text, ())
    yield from case.exact("answer_position", text.before_last)
    output = model.vlbert.encode(batch, elements)
    yield from case.state_checks(text.mask, elements.mask)
    logits = model.answers(batch, output)
    targets = arrays.floats("in/label", *logits.shape)
    loss = model.loss(logits, targets).mean
    yield from case.real("label_logits", logits)
    yield from case.real("inference_logits", logits)
    yield from case.real("soft_accuracy", targets.gather(1, logits.argmax(dim=1, keepdim=True)).mean())
    yield from case.loss("ans_loss", loss)
    yield from case.loss("loss", loss)
    yield from case.gradient_checks(model, loss)


def vcr_checks(arrays: ModelArrays) -> Iterator[Check]:
    case = open_case(arrays, "vcr")
    model: VLBertForVcr = case.build(VLBertForVcr)
    (text, elements, batch), shown, choices = vcr_inputs(case)
    yield from _text_checks(case, text, (len(shown.mask), choices))
    output = model.vlbert.encode(batch, elements)
    yield from case.state_checks(text.mask, elements.mask)
    scores = model.choices(output, choices)
    yield from case.real("label_logits", scores)
    yield from case.real("inference_logits", scores)
    longest = int(shown.mask.sum(dim=1).max())
    assert batch.region_classes is not None
    with torch.no_grad():
        of_question = batch.image_hw[::choices], batch.region_classes[::choices]
        _, visuals = model.vlbert.embed_elements(shown, *of_question)
    yield from case.real("obj_reps", visuals[:, :longest], shown.mask[:, :longest])
    yield from case.real("obj_reps_raw", shown.features[:, :longest].detach(), shown.mask[:, :longest])
    answer, objects = vcr_losses(model, case, batch, output, shown)
    yield from case.loss("ans_loss", answer.mean)
    total = answer.mean * loss_weight(case, "ANS_LOSS_WEIGHT")
    if objects is not None:
        yield from case.loss("cnn_regularization_loss", objects.mean)
        total = total + objects.mean * loss_weight(case, "CNN_LOSS_WEIGHT")
    yield from case.loss("loss", total)
    yield from case.gradient_checks(model, total)


def vcr_losses(
    model: VLBertForVcr, case: VLBertCase, batch: VLBatch, output: VLOutput, shown: VLBertImageElements
) -> tuple[SumCount, SumCount | None]:
    """Of the choice, and of the classes of objects where the model has their head."""
    questions = len(shown.mask)
    choices = batch.batch_size // questions
    right = case.arrays.whole("in/answer_label", 0, choices, questions)
    answer = model.choice_loss(model.choices(output, choices), right)
    if model.object_head is None:
        return answer, None
    labels = _object_labels(case.arrays, case.config, shown.mask)
    return answer, model.object_loss(batch, output, labels[:, 1:].repeat_interleave(choices, dim=0))


def loss_weight(case: VLBertCase, name: str) -> float:
    return float(case.network.get(name, 1.0))


def refcoco_checks(arrays: ModelArrays) -> Iterator[Check]:
    case = open_case(arrays, "refcoco")
    model: VLBertForReferring = case.build(VLBertForReferring)
    text, elements, batch = refcoco_inputs(case)
    rows = len(elements.mask)
    output = model.vlbert.encode(batch, elements)
    yield from case.state_checks(text.mask, elements.mask)
    scores = model.score_regions(batch, output)
    targets = arrays.floats("in/label", *elements.mask.shape)
    if "in/gt_box" in arrays:
        yield from target_checks(arrays, elements.boxes, elements.mask, targets)
    loss = model.loss(batch, scores, targets).mean
    yield from case.real("label_logits", scores, elements.mask)
    yield from case.real("inference_logits", scores, elements.mask)
    info = arrays.floats("in/im_info", rows, None)
    chosen = elements.boxes[torch.arange(rows), scores.argmax(dim=1)]
    yield from case.real("pred_boxes", chosen / info[:, 2:4].repeat(1, 2))
    yield from case.loss("cls_loss", loss)
    yield from case.loss("loss", loss)
    yield from case.gradient_checks(model, loss)


def _text_checks(case: VLBertCase, text: JoinedText, lead: tuple[int, ...]) -> Iterator[Check]:
    """`lead`: axes of the reference in front of the pieces, where they are not just rows."""
    for name, part in (
        ("text_input_ids", text.ids),
        ("text_token_type_ids", text.segments),
        ("text_mask", text.mask),
        ("text_tags", text.tags),
    ):
        yield from case.exact(name, part.reshape(*lead, -1) if lead else part)


def _choice_texts(case: VLBertCase, question: Tensor, answers: Tensor, count: int) -> JoinedText:
    """One row for each choice: its question is repeated."""
    choices = answers.shape[1]
    both = question[:, None].expand(-1, choices, -1, -1).flatten(0, 1), answers.flatten(0, 1)
    for part, name in zip(both, ("in/question", "in/answer_choices"), strict=True):
        pieces, tags = part[..., 0], part[..., 1]
        if bool((pieces >= case.config.vocab_size).any()) or bool((tags[pieces > 0] >= count).any()):
            raise ArrayError(name, f"must hold pieces below {case.config.vocab_size} and tags below {count}")
    order = "answer_question" if case.network.get("ANSWER_FIRST", False) else "question_answer"
    if case.network.get("QA_ONE_SENT", False):
        order = "one_sentence"
    return join_question_answer(
        both[0][..., 0],
        both[1][..., 0],
        cls_id=case.token("[CLS]"),
        sep_id=case.token("[SEP]"),
        question_tags=both[0][..., 1],
        answer_tags=both[1][..., 1],
        order=order,
    )


def _words_of_regions(tags_BT: Tensor, regions: int) -> Tensor:
    """(B, R, T) `VLBatch.aligned_words`: tag n names element n, which is region n - 1; 0 is the whole image."""
    named = tags_BT[:, None] == torch.arange(1, regions + 1)[None, :, None]
    return torch.where(named, torch.arange(tags_BT.shape[1]), -1)


def _object_labels(arrays: ModelArrays, config: Any, real: Tensor) -> Tensor:
    labels = arrays.floats("in/boxes")[..., 5].long()
    known = (labels >= 0) & (labels < config.num_object_labels)
    if not bool(known[real].all()) or bool(labels[:, 0].any()):
        raise ArrayError("in/boxes", f"must hold classes below {config.num_object_labels}, 0 for the whole image")
    return labels


def target_checks(arrays: ModelArrays, boxes: Tensor, real: Tensor, targets: Tensor) -> Iterator[Check]:
    """The labels are what the box of the object says, -1 at padding."""
    objects = arrays.floats("in/gt_box", len(boxes), 4)
    labels = np.full(real.shape, -1, np.int64)
    for row, mask in enumerate(real.numpy()):
        both = torch.cat([objects[row : row + 1], boxes[row]]).numpy()
        labels[row, mask] = overlaps_with_inclusive_sides(both)[0, 1:][mask] > 0.5
    if bool((targets != targets.round()).any()):
        yield within("in/label", float((targets - targets.round()).abs().max()), VLBERT.values, "from 0 or 1")
    yield equal("in/label", labels, targets.long().numpy())
