"""ViLBERT, its single-stream baseline and InterBERT on tasks (section 3.2 of arXiv:1908.02265 and arXiv:2003.13198).

    [CLS] question [SEP] | IMG regions                labels: the product of the pooled streams
    [CLS] question [SEP] choice [SEP] | IMG regions   choices: the same; the choice is segment 1
    [CLS] expression [SEP] | IMG regions              regions: their own states
    IMG regions [CLS] question [SEP] choice [SEP]     InterBERT: the pair's pooled vector; regions: their own states

Two images make two rows, whose pooled vectors stand side by side (vilbert-multi-task, NLVR2). The baseline reads its
pooled [CLS]. A model that holds the heads of its release (vilbert_beta, vilbert-multi-task, black4321/InterBERT) for
several tasks is called for the scores of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from roibeam.model.common.fields import TINY_SIZES
from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.fields import TINY as TINY_INTERBERT
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks, interbert_config, interbert_small
from roibeam.model.vilbert.encoder import ViLbertConfig, vilbert_config, vilbert_small
from roibeam.model.vilbert.fields import TINY as TINY_VILBERT
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


def _answers(model: Any, batch: VLBatch) -> Any:
    """(B, A) logits."""
    return model.answers(model.encode(batch))


def _choices(model: Any, batch: VLBatch) -> Any:
    """(B, 1) scores."""
    return model.score_pairs(model.encode(batch))[:, None]


def _regions(model: Any, batch: VLBatch) -> Any:
    """(B, R + 1) scores, the whole image first."""
    return model.score_regions(batch, model.encode(batch))


def _statements(model: Any, batch: VLBatch) -> Any:
    """(B / 2, 2) logits of statements about the two images of rows 2i and 2i + 1."""
    return model.image_pairs(model.encode(batch))


def _head(
    model: type[nn.Module],
    scores: Callable[[Any, VLBatch], Any],
    head: str,
    config: Callable[[Any, int], Any] = with_labels,
) -> ReleaseHead:
    """A model that holds the heads of its release, called for the scores of one of them."""
    called = type(model.__name__, (model,), {"forward": scores})
    return ReleaseHead(called, model.__name__, config, shared_parameters, f"{head}.")


def _heads(model: type[nn.Module]) -> dict[str, ReleaseHead]:
    return {
        LABEL: _head(model, _answers, "answer_head"),
        CHOICE: _head(model, _choices, "pair_score"),
        REGION: _head(model, _regions, "region_score"),
    }


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, _num_images: int) -> list[Span]:
    return parts_with_separators(pieces, parts, last_segment=1 if form == CHOICE else 0)


def _multi_task(config: ViLbertConfig, num_labels: int) -> ViLbertConfig:
    """The configuration of the multi-task release with one classifier, of so many answers; 0 for none."""
    return with_labels(config, num_labels, num_gqa_answers=0)


def _image_pairs(config: ViLbertConfig, num_labels: int) -> ViLbertConfig:
    if num_labels != IMAGE_PAIR_LABELS:
        raise ValueError(
            f"head.kind 'release-mt': the head for two images has {IMAGE_PAIR_LABELS} labels, as NLVR2, and this task "
            f"has {num_labels}; set head.kind to 'ours'"
        )
    return _multi_task(config, 0)


def _without_classifier(config: ViLbertConfig, _: int) -> ViLbertConfig:
    return _multi_task(config, 0)


_MULTI_TASK = {
    LABEL: _head(ViLbertForMultiTask, _answers, "answer_head", _multi_task),
    OutputSpec(LABEL, num_images=2).of_head: _head(ViLbertForMultiTask, _statements, "image_pair_head", _image_pairs),
    CHOICE: _head(ViLbertForMultiTask, _choices, "pair_score", _without_classifier),
    REGION: _head(ViLbertForMultiTask, _regions, "region_score", _without_classifier),
}
SYSTEM = TaskSystem(
    name="vilbert",
    model_class=ViLbertForPreTraining,
    sizes={"tiny": partial(vilbert_small, **TINY_VILBERT), "small": vilbert_small, "base": vilbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings - config.first_position,
    classifier="two_layers",
    unread_alone=(".region_embeddings.", ".image_", ".text_attention.", ".pooler.image."),
    release_heads={RELEASE: _heads(ViLbertForTasks), RELEASE_MT: _MULTI_TASK},
)
SINGLE_STREAM = replace(
    SYSTEM,
    name="vilbert-single-stream",
    model_class=SingleStreamForPreTraining,
    sizes={
        "tiny": partial(single_stream_small, **TINY_SIZES),
        "small": single_stream_small,
        "base": SingleStreamConfig,
    },
    positions=lambda config: config.max_position_embeddings,
    release_heads={RELEASE: _heads(SingleStreamForTasks)},
    parts=("embeddings.", "encoder.", "pooler."),
    unread_alone=("embeddings.features.", "embeddings.locations.", "embeddings.region_"),
)


INTERBERT_SYSTEM = TaskSystem(
    name="interbert",
    model_class=InterBertForPreTraining,
    sizes={"tiny": partial(interbert_small, **TINY_INTERBERT), "small": interbert_small, "base": interbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings,
    unread_alone=(".region_embeddings.", "interbert.image.", ".pooler.image."),
    release_heads={RELEASE: _heads(InterBertForTasks)},
)
