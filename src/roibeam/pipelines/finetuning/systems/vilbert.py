"""ViLBERT and its single-stream baseline on tasks (arXiv:1908.02265, section 3.2; vilbert_beta, vilbert-multi-task).

    [CLS] question [SEP] | IMG regions               labels: the product of the pooled streams
    [CLS] question [SEP] choice [SEP] | IMG regions  choices: the same; the choice is segment 1
    [CLS] expression [SEP] | IMG regions             regions: their own states

Two images make two rows, whose pooled vectors stand side by side (vilbert-multi-task, NLVR2). The baseline reads its
pooled [CLS]. The heads of two releases and of the baseline's code are here; those for choices and regions are one layer
in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roibeam.model.vilbert.config import ViLbertConfig, vilbert_config, vilbert_small
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, single_stream_small
from roibeam.model.vilbert.single_stream_tasks import SingleStreamForTasks
from roibeam.model.vilbert.tasks import IMAGE_PAIR_LABELS, ViLbertForMultiTask, ViLbertForTasks
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.head_options import RELEASE, RELEASE_MT
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.score_calls import (
    CalledForAnswers,
    CalledForChoices,
    CalledForImagePairs,
    CalledForRegions,
)
from roibeam.pipelines.finetuning.systems.task_system import (
    AskedForm,
    ReleaseHead,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class ViLbertAnswers(CalledForAnswers, ViLbertForTasks): ...  # type: ignore[misc]


class ViLbertChoices(CalledForChoices, ViLbertForTasks): ...  # type: ignore[misc]


class ViLbertRegions(CalledForRegions, ViLbertForTasks): ...  # type: ignore[misc]


class MultiTaskAnswers(CalledForAnswers, ViLbertForMultiTask): ...  # type: ignore[misc]


class MultiTaskChoices(CalledForChoices, ViLbertForMultiTask): ...  # type: ignore[misc]


class MultiTaskRegions(CalledForRegions, ViLbertForMultiTask): ...  # type: ignore[misc]


class MultiTaskImagePairs(CalledForImagePairs, ViLbertForMultiTask): ...  # type: ignore[misc]


class SingleStreamAnswers(CalledForAnswers, SingleStreamForTasks): ...


class SingleStreamChoices(CalledForChoices, SingleStreamForTasks): ...


class SingleStreamRegions(CalledForRegions, SingleStreamForTasks): ...


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, num_images: int) -> list[Span]:
    return parts_with_separators(pieces, parts, last_segment=1 if form == CHOICE else 0)


def _multi_task(config: ViLbertConfig, num_labels: int) -> ViLbertConfig:
    """The configuration of the multi-task release with one classifier, of so many answers; 0 for none."""
    fields = {name: value for name, value in config.to_diff_dict().items() if name in config.own_fields()}
    return ViLbertConfig(**{**fields, "num_answers": num_labels, "num_gqa_answers": 0})


def _image_pairs(config: ViLbertConfig, num_labels: int) -> ViLbertConfig:
    if num_labels != IMAGE_PAIR_LABELS:
        raise ValueError(
            f"head.kind 'release-mt': the head for two images has {IMAGE_PAIR_LABELS} labels, as NLVR2, and this task "
            f"has {num_labels}; set head.kind to 'ours'"
        )
    return _multi_task(config, 0)


def _heads(official: str, answers: Any, choices: Any, regions: Any) -> dict[str, ReleaseHead]:
    """What the first release and the baseline have."""
    return {
        LABEL: ReleaseHead(answers, official, with_labels, shared_parameters, "answer_head."),
        CHOICE: ReleaseHead(choices, official, with_labels, shared_parameters, "pair_score."),
        REGION: ReleaseHead(regions, official, with_labels, shared_parameters, "region_score."),
    }


def _multi_task_head(network: type[ViLbertForMultiTask], config: Any, head: str) -> ReleaseHead:
    return ReleaseHead(network, "ViLbertForMultiTask", config, shared_parameters, head)


def _without_classifier(config: ViLbertConfig, _: int) -> ViLbertConfig:
    return _multi_task(config, 0)


_MULTI_TASK = {
    LABEL: _multi_task_head(MultiTaskAnswers, _multi_task, "answer_head."),
    AskedForm(LABEL, num_images=2).of_head: _multi_task_head(MultiTaskImagePairs, _image_pairs, "image_pair_head."),
    CHOICE: _multi_task_head(MultiTaskChoices, _without_classifier, "pair_score."),
    REGION: _multi_task_head(MultiTaskRegions, _without_classifier, "region_score."),
}
SYSTEM = TaskSystem(
    name="vilbert",
    model_class=ViLbertForPreTraining,
    sizes={"small": vilbert_small, "base": vilbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings - config.first_position,
    classifier="two_layers",
    unread_alone=(".region_embeddings.", ".image_", ".text_attention.", ".pooler.image."),
    release_heads={
        RELEASE: _heads("ViLbertForTasks", ViLbertAnswers, ViLbertChoices, ViLbertRegions),
        RELEASE_MT: _MULTI_TASK,
    },
)
SINGLE_STREAM = replace(
    SYSTEM,
    name="vilbert-single-stream",
    model_class=SingleStreamForPreTraining,
    sizes={"small": single_stream_small, "base": SingleStreamConfig},
    positions=lambda config: config.max_position_embeddings,
    release_heads={
        RELEASE: _heads("SingleStreamForTasks", SingleStreamAnswers, SingleStreamChoices, SingleStreamRegions)
    },
    parts=("embeddings.", "encoder.", "pooler."),
    unread_alone=("embeddings.features.", "embeddings.locations.", "embeddings.region_"),
)
