"""VL-BERT's task models against their reference arrays: VQA, VCR and RefCOCO+ (goldens/vlbert/README.md)."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from harness.case_files import ArrayError
from harness.checks import Check, equal, within
from harness.model_case import ModelArrays, batch_of
from harness.tolerances import VLBERT
from harness.vlbert.case import VLBertCase, open_case
from roibeam.model.common.losses import SumCount
from roibeam.model.common.masking import overlaps_with_inclusive_sides
from roibeam.model.inputs import VLBatch
from roibeam.model.vlbert.embeddings import VLBertImageElements
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa


class JoinedText(NamedTuple):
    """(B, T) of rows of text, padded with zeros at the end; tags are numbers of pieces, 0 at special ones."""

    ids: Tensor
    segments: Tensor
    mask: Tensor
    tags: Tensor


def _joined(case: VLBertCase, question_BQ2: Tensor, answer_BA2: Tensor, order: str) -> JoinedText:
    """[CLS] question [SEP] answer [SEP], as the release's `prepare_text_from_qa`, of pieces with their tags; a piece is
    real where its id is above 0, padding comes last.

    Args:
        order: "question_answer"; "answer_question", where the question is the second segment; "one_sentence", without
            [SEP] and segment between.
    """
    first, second = (answer_BA2, question_BQ2) if order == "answer_question" else (question_BQ2, answer_BA2)
    begin, end = (first.new_tensor([[[case.token(name), 0]]]).expand(len(first), 1, 2) for name in ("[CLS]", "[SEP]"))
    sentences = [(begin, first, second, end)] if order == "one_sentence" else [(begin, first, end), (second, end)]
    parts = [torch.cat(each, dim=1) for each in sentences]
    segments = torch.cat([torch.full_like(part[..., 0], number) for number, part in enumerate(parts)], dim=1)
    ids, tags = torch.cat(parts, dim=1).unbind(dim=-1)
    real = ids > 0
    # Real pieces move to the front in their order.
    places = (~real).long().argsort(dim=1, stable=True)[:, : int(real.sum(dim=1).max())]
    mask = real.gather(1, places)
    ids, segments, tags = (part.gather(1, places) * mask for part in (ids, segments, tags))
    return JoinedText(ids, segments, mask, tags)


class TaskInputs(NamedTuple):
    """What a task's model reads of a case: a row for each question, or for each of its choices."""

    text: JoinedText
    elements: VLBertImageElements  # of each row of the batch
    batch: VLBatch


class TaskRun(NamedTuple):
    """What a task's model makes of a case."""

    inputs: TaskInputs
    shown: VLBertImageElements  # elements of each question; those of `inputs` where a question has no rows for choices
    scores: Tensor
    losses: dict[str, SumCount]  # by their names in the file
    weights: dict[str, float]  # what a loss is multiplied by, where that is not 1

    def total(self) -> Tensor:
        return torch.stack([self.weights.get(name, 1.0) * term.mean for name, term in self.losses.items()]).sum()


def run_vqa(model: VLBertForVqa, case: VLBertCase) -> TaskRun:
    elements = case.elements()
    question = case.arrays.whole("in/question", 0, case.config.vocab_size, len(elements.mask), None)
    answer = question.new_full((len(question), 1), case.token("[MASK]"))
    inputs = _one_text(case, elements, question, answer, "question_answer")
    logits = model.answers(inputs.batch, model.vlbert.encode(inputs.batch, elements))
    loss = model.loss(logits, case.arrays.floats("in/label", *logits.shape))
    return TaskRun(inputs, elements, logits, {"ans_loss": loss}, {})


def run_refcoco(model: VLBertForReferring, case: VLBertCase) -> TaskRun:
    elements = case.elements()
    expression = case.arrays.whole("in/expression", 0, case.config.vocab_size, len(elements.mask), None)
    # [CLS] expression [SEP]: an empty answer in one sentence.
    inputs = _one_text(case, elements, expression, expression.new_zeros(len(expression), 0), "one_sentence")
    scores = model.score_regions(inputs.batch, model.vlbert.encode(inputs.batch, elements))
    loss = model.loss(inputs.batch, scores, case.arrays.floats("in/label", *elements.mask.shape))
    return TaskRun(inputs, elements, scores, {"cls_loss": loss}, {})


def run_vcr(model: VLBertForVcr, case: VLBertCase) -> TaskRun:
    inputs, shown, choices = _vcr_inputs(case)
    output = model.vlbert.encode(inputs.batch, inputs.elements)
    scores = model.choices(output, choices)
    right = case.arrays.whole("in/answer_label", 0, choices, len(scores))
    losses = {"ans_loss": model.choice_loss(scores, right)}
    if model.object_head is not None:
        labels = _object_labels(case.arrays, case.config, shown.mask)[:, 1:].repeat_interleave(choices, dim=0)
        losses["cnn_regularization_loss"] = model.object_loss(inputs.batch, output, labels)
    options = {"ans_loss": "ANS_LOSS_WEIGHT", "cnn_regularization_loss": "CNN_LOSS_WEIGHT"}
    weights = {name: float(case.network.get(option, 1.0)) for name, option in options.items()}
    return TaskRun(inputs, shown, scores, losses, weights)


TASKS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[Any, VLBertCase], TaskRun]]] = {
    "vqa": (VLBertForVqa, run_vqa),
    "vcr": (VLBertForVcr, run_vcr),
    "refcoco": (VLBertForReferring, run_refcoco),
}


def _one_text(
    case: VLBertCase, elements: VLBertImageElements, question: Tensor, answer: Tensor, order: str
) -> TaskInputs:
    untagged = [torch.stack([pieces, torch.zeros_like(pieces)], dim=-1) for pieces in (question, answer)]
    text = _joined(case, untagged[0], untagged[1], order)
    hw = case.image_hw(len(question))
    return TaskInputs(text, elements, batch_of((text.ids, text.mask, text.segments), elements[:3], hw))


def _vcr_inputs(case: VLBertCase) -> tuple[TaskInputs, VLBertImageElements, int]:
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
        (text.ids, text.mask, text.segments),
        elements[:3],
        case.image_hw(questions).repeat_interleave(choices, dim=0),
        aligned_words=_words_of_regions(text.tags, count - 1),
        region_classes=arrays.floats("in/boxes")[:, 1:, 5].long().repeat_interleave(choices, dim=0),
    )
    return TaskInputs(text, elements, batch), shown, choices


def task_checks(arrays: ModelArrays, kind: str) -> Iterator[Check]:
    """Texts, states, scores, losses and gradients of a case of one of `TASKS`."""
    make, run_task = TASKS[kind]
    case = open_case(arrays, kind)
    model = case.build(make)
    run = run_task(model, case)
    (text, elements, batch), shown, scores = run.inputs, run.shown, run.scores
    lead = (len(shown.mask), -1) if kind == "vcr" else ()  # axes in front of the pieces, where they are not just rows
    texts = {"text_input_ids": text.ids, "text_token_type_ids": text.segments, "text_mask": text.mask}
    for name, part in {**texts, "text_tags": text.tags}.items():
        yield from case.exact(name, part.reshape(*lead, part.shape[1]) if lead else part)
    yield from case.exact("answer_position", text.mask.sum(dim=1) - 2)
    yield from case.state_checks(text.mask, elements.mask)
    if "in/gt_box" in arrays:
        yield from target_checks(arrays, elements.boxes, elements.mask, arrays.floats("in/label", *elements.mask.shape))
    for name in ("label_logits", "inference_logits"):
        yield from case.real(name, scores, elements.mask if kind == "refcoco" else None)
    if kind == "vqa":
        targets = arrays.floats("in/label", *scores.shape)
        yield from case.real("soft_accuracy", targets.gather(1, scores.argmax(dim=1, keepdim=True)).mean())
    elif kind == "refcoco":
        rows = len(scores)
        chosen = elements.boxes[torch.arange(rows), scores.argmax(dim=1)]
        yield from case.real("pred_boxes", chosen / arrays.floats("in/im_info", rows, None)[:, 2:4].repeat(1, 2))
    else:
        choices, longest = scores.shape[1], int(shown.mask.sum(dim=1).max())
        assert batch.region_classes is not None
        with torch.no_grad():
            of_question = batch.image_hw[::choices], batch.region_classes[::choices]
            _, visuals = model.vlbert.embed_elements(shown, *of_question)
        for name, part in {"obj_reps": visuals, "obj_reps_raw": shown.features.detach()}.items():
            yield from case.real(name, part[:, :longest], shown.mask[:, :longest])
    for name, term in run.losses.items():
        yield from case.loss(name, term.mean)
    yield from case.loss("loss", run.total())
    yield from case.gradient_checks(model, run.total())


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
    return _joined(case, both[0][..., :2], both[1][..., :2], order)


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
