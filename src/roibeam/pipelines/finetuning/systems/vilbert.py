"""ViLBERT, its single-stream baseline and InterBERT on tasks (section 3.2 of arXiv:1908.02265 and arXiv:2003.13198).

    [CLS] question [SEP] | IMG regions                labels: the product of the pooled streams
    [CLS] question [SEP] choice [SEP] | IMG regions   choices: the same; the choice is segment 1
    [CLS] expression [SEP] | IMG regions              regions: their own states
    IMG regions [CLS] question [SEP] choice [SEP]     InterBERT: the pair's pooled vector; regions: their own states

Two images make two rows, whose pooled vectors stand side by side (vilbert-multi-task, NLVR2). The baseline reads its
pooled [CLS]. A model that holds the heads of its release (vilbert_beta, vilbert-multi-task, black4321/InterBERT) for
several tasks is called for the scores of one: that class stands before the model's own among the bases of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks, interbert_config, interbert_small
from roibeam.model.vilbert.encoder import ViLbertConfig, vilbert_config, vilbert_small
from roibeam.model.vilbert.model import IMAGE_PAIR_LABELS, ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import (
    SingleStreamConfig,
    SingleStreamForPreTraining,
    SingleStreamForTasks,
    single_stream_small,
)
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.options import RELEASE, RELEASE_MT
from roibeam.pipelines.finetuning.systems.task_system import (
    OutputSpec,
    Pieces,
    ReleaseHead,
    Span,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class CalledModel:
    """Base of models whose call applies `encode`, then one of their heads."""

    encode: Any


class CalledForAnswers(CalledModel):
    """Maps a batch to (B, A) logits."""

    answers: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.answers(self.encode(batch))


class CalledForChoices(CalledModel):
    """Maps a batch to (B, 1) scores."""

    score_pairs: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.score_pairs(self.encode(batch))[:, None]


class CalledForRegions(CalledModel):
    """Maps a batch to (B, R + 1) scores, the whole image first."""

    score_regions: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.score_regions(batch, self.encode(batch))


class CalledForImagePairs(CalledModel):
    """Maps a batch to (B / 2, 2) logits of statements about the two images of rows 2i and 2i + 1."""

    image_pairs: Any

    def forward(self, batch: VLBatch) -> Any:
        return self.image_pairs(self.encode(batch))


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
    """Heads of the first release and the baseline."""
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
    OutputSpec(LABEL, num_images=2).of_head: _multi_task_head(MultiTaskImagePairs, _image_pairs, "image_pair_head."),
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


class InterBertAnswers(CalledForAnswers, InterBertForTasks): ...


class InterBertChoices(CalledForChoices, InterBertForTasks): ...


class InterBertRegions(CalledForRegions, InterBertForTasks): ...


def _head(network: type[InterBertForTasks], head: str) -> ReleaseHead:
    return ReleaseHead(network, "InterBertForTasks", with_labels, shared_parameters, head)


INTERBERT_SYSTEM = TaskSystem(
    name="interbert",
    model_class=InterBertForPreTraining,
    sizes={"small": interbert_small, "base": interbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings,
    unread_alone=(".region_embeddings.", "interbert.image.", ".pooler.image."),
    release_heads={
        RELEASE: {
            LABEL: _head(InterBertAnswers, "answer_head."),
            CHOICE: _head(InterBertChoices, "pair_score."),
            REGION: _head(InterBertRegions, "region_score."),
        }
    },
)
