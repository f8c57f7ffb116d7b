"""Changes that a mode of a run makes to its recipe: all of them, with a reason each.

A run equals its recipe, field by field, but for these; tests/pipelines/test_runs_are_recipes.py holds every recipe to
it, and `roibeam recipes NAME` prints those of its run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

DATA, TEXTS, NO_CLASSES = "data", "text corpus", "data without classes"
TOY, END_TO_END, FROM_BERT, FROM_RUN = "--toy", "--end-to-end", "from BERT", "from a run"
TASK, TOY_TASK = "a task's model", "--toy of a task"


class ModeChange(NamedTuple):
    """
    Attributes:
        fields: as `--set` names them, that it changes.
    """

    mode: str
    fields: tuple[str, ...]
    words: str

    def named(self, known: Collection[str]) -> str:
        """The fields, for people: of the model those `known` of its configuration; many sizes are called sizes."""
        if self.fields == _SIZES:
            return "the model's sizes"
        return ", ".join(each for each in self.fields if each.removeprefix("model.") in known or "model." not in each)


def _of_model(*names: str) -> tuple[str, ...]:
    return tuple(f"model.{name}" for name in names)


_SIZES = _of_model(
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "coordinate_embedding_size"),
    *("image_hidden_size", "image_num_hidden_layers", "image_num_attention_heads", "image_intermediate_size"),
    *("co_attention_size", "co_attention_num_heads", "text_co_attention", "image_co_attention"),
    *("text_num_hidden_layers", "pooled_size"),
)
MODE_CHANGES = (
    ModeChange(
        DATA,
        _of_model("vocab_size", "region_feature_size", "num_region_labels", "region_target_size", "num_region_classes"),
        "as many words, numbers of a feature and classes as the tokenizer, the store and --objects have",
    ),
    ModeChange(
        NO_CLASSES,
        _of_model("with_region_head", "with_region_class_head", "region_loss"),
        "off: a store without classes of its regions has none to predict, with a note",
    ),
    ModeChange(TEXTS, _of_model("with_text_only"), "true: rows without an image need a visual feature of their own"),
    ModeChange(TOY, _SIZES, "those of a small model, which trains in minutes on 2 cores"),
    ModeChange(
        TOY,
        ("train.steps", "train.learning_rate", "train.warmup_steps", "train.accumulation", "data.batch_size"),
        "400 steps of 32 captions (end to end 40), a tenth of them warm-up, at the rate 0.001, which small models need",
    ),
    ModeChange(TOY, ("start",), "new weights: no BERT is as small"),
    ModeChange(TOY, ("detector",), "the toy detector's network, where no other is named; it comes with roibeam"),
    ModeChange(
        END_TO_END,
        _of_model("masked_appearance"),
        "pixels (end_to_end.masking=release), where recipe and model name none: photos hide what is masked",
    ),
    ModeChange(
        FROM_BERT,
        _of_model(
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
            *("hidden_activation", "max_position_embeddings"),
        ),
        "those of the BERT that it starts from (InterBERT keeps its number of layers)",
    ),
    ModeChange(
        TASK,
        _of_model("num_segments", "text_visual", "masked_appearance", "masked_region_token", "num_region_tokens"),
        "what the task asks of VL-BERT: nothing is masked, a second image or the class of a region has a place",
    ),
    ModeChange(
        TASK,
        _of_model("region_labels", "relationship_loss", "word_loss_mean", "region_loss_mean"),
        "not read: they are of the objectives of pre-training",
    ),
    ModeChange(TOY_TASK, _SIZES, "those of a small model, where it starts from none"),
    ModeChange(
        TOY_TASK,
        (
            *("train.steps", "train.learning_rate", "train.warmup_steps", "train.accumulation", "train.decay_steps"),
            *("train.evaluate_every", "data.batch_size"),
        ),
        "60 steps of a micro-batch (end to end 10), a tenth of them warm-up, at the rate 0.001: models are small",
    ),
    ModeChange(TOY_TASK, ("start",), "new weights where it starts from a BERT: none is as small"),
    ModeChange(TOY_TASK, ("detector",), "the toy detector's network and its edges, where no other is named"),
    ModeChange(
        TOY_TASK, ("vqa.min_occurrence",), "1: a toy world has too few questions for an answer to come up often"
    ),
    ModeChange(FROM_RUN, ("model",), "those of the run that it goes on from, but for what the recipe changes"),
)


def changed_by(modes: Collection[str]) -> Iterator[ModeChange]:
    return (each for each in MODE_CHANGES if each.mode in modes)
