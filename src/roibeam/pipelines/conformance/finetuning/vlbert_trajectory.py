"""VL-BERT's release: VQA on stored features, VCR and RefCOCO+ through the image network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.losses import SumCount
from roibeam.model.vlbert.checkpoint import state_from_official
from roibeam.model.vlbert.config import VLBertTaskConfig
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.model.vlbert.text import join_question_answer
from roibeam.pipelines.conformance.case_files import Arrays
from roibeam.pipelines.conformance.finetuning.trajectory import MicroBatch, Release
from roibeam.pipelines.conformance.model_case import ModelArrays
from roibeam.pipelines.conformance.vlbert.case import VLBertCase, batch_of, open_case
from roibeam.pipelines.conformance.vlbert.pixels import PREFIX
from roibeam.pipelines.conformance.vlbert.task_cases import choice_rows, object_labels, words_of_regions
from roibeam.pipelines.model_files.model_checkpoint import build_model
from roibeam.pipelines.training.release_settings import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

# Of a trajectory, beside what any case of VL-BERT has.
OPTIONS = frozenset(
    {
        "TRAIN", "official", "micro_batches_per_epoch", "updates", "trainable", "groups", "tied", "final_unchanged",
        "note_alias",
    }
)  # fmt: skip
Losses = tuple[dict[str, SumCount], dict[str, Tensor]]


class _Trained(nn.Module):
    """Model and image network, where there is one, as one module."""

    def __init__(self, model: nn.Module, encoder: RegionEncoder | None) -> None:
        super().__init__()
        self.model, self.encoder = model, encoder


class _OfBatch(Arrays):
    """The arrays of one micro-batch under the names that a case of one batch has."""

    def __init__(self, whole: Arrays, number: int) -> None:
        self._whole, self._number = whole, number

    def take(self, name: str, *shape: int | None) -> Any:
        return self._whole.take(self._renamed(name), *shape)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._renamed(name) in self._whole

    def _renamed(self, name: str) -> str:
        return name.replace("in/", f"in/{self._number}.", 1)


class _DoubleArrays(ModelArrays):
    """Floats are float64."""

    def __init__(self, whole: ModelArrays, number: int) -> None:
        self.arrays, self.options = _OfBatch(whole.arrays, number), whole.options

    def floats(self, name: str, *shape: int | None) -> Tensor:
        return super().floats(name, *shape).double()


def vlbert_release(arrays: ModelArrays) -> Release:
    kind = arrays.options["official"].split()[1].partition("/")[0]
    case = open_case(arrays, kind, more_options=OPTIONS)
    makes: Mapping[str, Any] = {"vqa": VLBertForVqa, "vcr": VLBertForVcr, "refcoco": VLBertForReferring}
    model = build_model(lambda: makes[kind](case.config), state_from_official(case.official)).double()
    encoder = None if case.encoder is None else case.encoder.double()
    trained = _Trained(model, encoder)
    numbers = sorted({int(name.partition(".")[0]) for name in arrays.names("in/")})
    read: Mapping[str, Callable[[VLBertCase, int], Any]] = {"vqa": _vqa, "vcr": _vcr, "refcoco": _refcoco}
    batches = {number: read[kind](replace(case, arrays=_DoubleArrays(arrays, number)), number) for number in numbers}
    officials = [name for name in arrays.names("param/") if _ours(case, name) in trained.state_dict()]
    names = {_ours(case, name): name for name in officials}
    train = arrays.options["TRAIN"]
    return Release(
        trained,
        batches,
        lambda module, batch: batch.inputs(module.model),
        _settings(arrays.options, train),
        names.__getitem__,
        scales=tuple((part, float(scale)) for part, scale in train["LR_MULT"]),
    )


def _ours(case: VLBertCase, official: str) -> str:
    image = official.startswith((f"{PREFIX}backbone.", f"{PREFIX}roi_head_feature_extractor."))
    return f"{'encoder' if image else 'model'}.{case.our_name(official)}"


def _settings(options: Mapping[str, Any], train: Mapping[str, Any]) -> TrainConfig:
    """TRAIN of the yaml, as train_net reads it: rates are per sample, milestones may be parts of epochs."""
    accumulation = int(train["GRAD_ACCUMULATE_STEPS"])
    batches = int(options["micro_batches_per_epoch"])
    adam = train["OPTIMIZER"] == "AdamW"
    fields: dict[str, Any] = {
        **release_settings("vl-bert"),
        "optimizer": "adamw-transformers" if adam else "sgd",
        "momentum": float(train["MOMENTUM"]),
        "steps": int(train["END_EPOCH"] * batches / accumulation),
        "learning_rate": float(train["LR"]) * int(train["BATCH_IMAGES"]) * accumulation,
        "weight_decay": float(train["WD"]),
        "warmup_steps": int(train["WARMUP_STEPS"]) if train["WARMUP"] else 0,
        "clip_norm": float(train["CLIP_GRAD_NORM"]),
        "accumulation": accumulation,
        "loss_mean": "micro_batch",
        "parameter_groups": "task",
        "device": "cpu",
    }
    if train["LR_SCHEDULE"] == "step":
        fields |= {
            "schedule": "steps",
            "decay_factor": float(train["LR_FACTOR"]),
            # Its schedule falls in the step that a milestone names.
            "decay_steps": tuple(int(epoch * batches / accumulation) - 1 for epoch in train["LR_STEP"]),
        }
    return TrainConfig(**fields)


def _vqa(case: VLBertCase, number: int) -> MicroBatch:
    arrays, elements = case.arrays, case.elements()
    rows = len(elements.mask)
    question = arrays.whole("in/question", 0, case.config.vocab_size, rows, None)
    answer = question.new_full((rows, 1), case.token("[MASK]"))
    text = join_question_answer(question, answer, cls_id=case.token("[CLS]"), sep_id=case.token("[SEP]"))
    batch = batch_of(text.ids, text.mask, text.segments, elements, case.image_hw(rows))
    label = arrays.floats("in/label", rows, None)

    def losses(model: VLBertForVqa) -> Losses:
        term = model.loss(model.answers(batch, model.vlbert.encode(batch, elements)), label)
        return {"answers": _weighted(term, case, "ANS_LOSS_WEIGHT")}, {"ans_loss": term.mean}

    return MicroBatch(losses, (), {"answers": rows})


def _vcr(case: VLBertCase, number: int) -> MicroBatch:
    arrays = case.arrays
    shape = arrays.arrays.take("in/boxes", None, None, 6).shape
    questions, count = int(shape[0]), int(shape[1])
    masks = arrays.floats("in/masks", questions, count, None, None)
    largest = max(case.config.vocab_size, count)
    answers = arrays.whole("in/answer_choices", -2, largest, questions, None, None, 3)
    question = arrays.whole("in/question", -2, largest, questions, None, 3)
    choices = int(answers.shape[1])
    text = choice_rows(case, question, answers, count)
    right = arrays.whole("in/answer_label", 0, choices, questions)
    real = arrays.floats("in/boxes")[..., 3] > -0.5
    assert isinstance(case.config, VLBertTaskConfig)
    labels: Tensor = object_labels(arrays, case.config, real)

    def losses(model: VLBertForVcr) -> Losses:
        shown = case.elements(valid_column=3, cell_weights=masks)
        elements = type(shown)(*(part.repeat_interleave(choices, dim=0) for part in shown))
        hw = case.image_hw(questions).repeat_interleave(choices, dim=0)
        words = words_of_regions(text.tags, count - 1)
        batch = batch_of(text.ids, text.mask, text.segments, elements, hw, aligned_words=words)
        output = model.vlbert.encode(batch, elements)
        term = model.choice_loss(model.choices(output, choices), right)
        found, beside = {"choices": _weighted(term, case, "ANS_LOSS_WEIGHT")}, {"ans_loss": term.mean}
        if model.object_head is not None:
            objects = model.object_loss(batch, output, labels[:, 1:].repeat_interleave(choices, dim=0))
            found["objects"] = _weighted(objects, case, "CNN_LOSS_WEIGHT")
            beside["cnn_regularization_loss"] = objects.mean
        return found, beside

    counts = {"choices": questions * choices if case.network.get("CLASSIFIER_SIGMOID") else questions}
    if case.network.get("CNN_LOSS_TOP") and case.network.get("ENABLE_CNN_REG_LOSS"):
        counts["objects"] = int(real.sum()) * choices
    return MicroBatch(losses, (), counts)


def _refcoco(case: VLBertCase, number: int) -> MicroBatch:
    arrays = case.arrays
    boxes = arrays.floats("in/boxes", None, None, None)
    rows, count = boxes.shape[:2]
    arrays.floats("in/gt_box", rows, 4)  # the labels say the same
    expression = arrays.whole("in/expression", 0, case.config.vocab_size, rows, None)
    text = join_question_answer(
        expression,
        expression.new_zeros(rows, 0),
        cls_id=case.token("[CLS]"),
        sep_id=case.token("[SEP]"),
        order="one_sentence",
    )
    label = arrays.floats("in/label", rows, count)

    def losses(model: VLBertForReferring) -> Losses:
        elements = case.elements()
        batch = batch_of(text.ids, text.mask, text.segments, elements, case.image_hw(rows))
        term = model.loss(batch, model.score_regions(batch, model.vlbert.encode(batch, elements)), label)
        return {"regions": term}, {"cls_loss": term.mean}

    return MicroBatch(losses, (), {"regions": int((boxes[..., 0] > -1.5).sum())})


def _weighted(term: SumCount, case: VLBertCase, name: str) -> SumCount:
    return SumCount(term.total * float(case.network.get(name, 1.0)), term.count)
