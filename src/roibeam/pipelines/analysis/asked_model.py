"""The model that is asked, and the tokenizer of its words: where every evaluation and every probe begins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.interbert.tasks import InterBertForTasks
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining
from roibeam.model.vilbert.single_stream_tasks import SingleStreamForTasks
from roibeam.model.vilbert.tasks import ViLbertForMultiTask, ViLbertForTasks
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.visualbert.tasks import VisualBertForGrounding, VisualBertForLabels
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.trained_with import trained_with

# They answer for masked words, masked regions and matches, as far as their configuration gives them the heads.
ASKED: tuple[type[PreTrainedModel], ...] = (
    VLBertForPreTraining,
    ViLbertForPreTraining,
    SingleStreamForPreTraining,
    VisualBertForPreTraining,
    ImageBertForPreTraining,
    InterBertForPreTraining,
)
# What the others were fine-tuned for. Some of them are a pre-training class too and keep its heads, but training on a
# task leaves those behind: what they say looks right and is not.
NOT_ASKED: Mapping[type[PreTrainedModel], str] = MappingProxyType(
    {
        VLBertForVqa: "VQA",
        VLBertForVcr: "VCR",
        VLBertForReferring: "RefCOCO+",
        ViLbertForTasks: "VQA, VCR, RefCOCO+ or retrieval",
        ViLbertForMultiTask: "twelve tasks at once",
        SingleStreamForTasks: "VQA, VCR or RefCOCO+",
        VisualBertForLabels: "VQA, VCR or NLVR2",
        VisualBertForGrounding: "Flickr30k Entities",
        InterBertForTasks: "VCR, retrieval or other tasks",
    }
)
NO_MATCH_HEAD = (
    "this model has no match head; what roibeam pretrain trains has one with --system visualbert, imagebert, vilbert, "
    "vilbert-single-stream or interbert, and with --system vlbert --model paper-small"
)


def pretraining_model(found: ModelCheckpoint, *, named: str, asking: str) -> Any:
    """The checkpoint's model, which answers for masked words, masked regions and matches.

    Args:
        named: what the user calls the checkpoint.
        asking: what is about to be done with it, such as "probe".
    Raises:
        ValueError: for a model with the heads of another task.
    """
    kind = type(found.model)
    if kind not in ASKED:
        tasks = NOT_ASKED.get(kind, "tasks that are not known here")
        raise ValueError(
            f"{named}: {kind.__name__} is fine-tuned for {tasks}; masked words, masked regions and matches are no "
            f"longer what it answers; {asking} the pre-trained model that it began from"
        )
    if classes := getattr(found.model.config, "num_region_classes", 0):
        raise ValueError(
            f"{named}: this VisualBERT is told the class of each region (num_region_classes {classes}), and nothing "
            f"here tells it; fine-tune it on VCR, whose files do, and judge it there"
        )
    return found.model


def assumed_of_features(found: ModelCheckpoint, record: RegionRecord) -> list[str]:
    """What nobody tells of how the model reads a store's record, and is taken so; a line each."""
    if trained_with(found).box_numbers is not None or found.as_read(record) is record:
        return []
    return [
        f"{found.source} does not tell what it reads: it is six numbers wider than the store's features, so those of "
        f"each region's box stand behind them, as VisualBERT's release has it for Flickr30k"
    ]


def tokenizer_spec(found: ModelCheckpoint, given: str | None) -> str:
    """What `load_tokenizer` is to read: as given, else the tokenizer beside the checkpoint.

    Raises:
        ValueError: when there is none.
    """
    if given:
        return given
    if found.tokenizer is None:
        raise ValueError(f"--tokenizer is missing: {found.source} has none beside it")
    return str(found.tokenizer)
