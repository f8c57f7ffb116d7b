"""Small pre-training runs that official codes and ours can both do: their sizes and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from roibeam.model.interbert import checkpoint as interbert_checkpoint
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.vilbert import checkpoint as vilbert_checkpoint
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert import checkpoint as visualbert_checkpoint
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert import checkpoint as vlbert_checkpoint
from roibeam.model.vlbert.checkpoint import config_from_official as vlbert_config_from_official
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.training.step_policies import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

STEPS = 20
ROWS = 4  # with an image, in a micro-batch
TEXT_ROWS = 2  # of text alone, where a case has them
FEATURE_SIZE, NUM_LABELS, VOCABULARY = 16, 7, 50
COORDINATES = 2048  # width of the embedded box, written into VL-BERT's code

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}
_TWO_STREAMS = {
    "v_feature_size": FEATURE_SIZE,
    "v_num_hidden_layers": 2,
    "v_num_attention_heads": 4,
    "v_intermediate_size": 36,
    "v_attention_probs_dropout_prob": 0.0,
    "v_hidden_act": "gelu",
    "v_hidden_dropout_prob": 0.0,
    "v_initializer_range": 0.02,
    "bi_hidden_size": 40,
    "bi_num_attention_heads": 4,
}
_VILBERT = {
    **_BERT,
    **_TWO_STREAMS,
    "num_hidden_layers": 3,
    "v_hidden_size": 32,
    "v_biattention_id": [0, 1],
    "t_biattention_id": [1, 2],
}
_INTERBERT = {**_BERT, **_TWO_STREAMS, "v_hidden_size": 24, "t_num_hidden_layers": 1}


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        name: of the case; its samples are drawn from it.
        system: whose code it is: "vl-bert", "vilbert", "interbert" or "visualbert".
        options: of the official configuration: NETWORK of VL-BERT, with VLBERT in it, or a JSON file's.
        train: our settings; the official ones follow from them.
        build: our model, float64, with weights that mean nothing.
        state_from_official: from official names and tensors to ours.
        labels: width of region targets; 0 where no regions are predicted.
        asks_match: whether pairs are told apart.
        text_rows: rows of text alone in a micro-batch.
        segments: of the text.
        region_pauses: whether every sixth step predicts no region, which some codes survive.
    """

    name: str
    system: str
    options: Mapping[str, Any]
    train: TrainConfig
    build: Callable[[], nn.Module]
    state_from_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    labels: int = NUM_LABELS
    asks_match: bool = True
    text_rows: int = 0
    segments: int = 1
    region_pauses: bool = False

    @property
    def rows(self) -> int:
        """Of a micro-batch."""
        return ROWS + self.text_rows


def _settings(rule: str, rate: float, warmup: int, **more: Any) -> TrainConfig:
    fields: dict[str, Any] = {"steps": STEPS, "learning_rate": rate, "warmup_steps": warmup, "device": "cpu"}
    fields |= {"checkpoint_every": 1, "keep": 0}
    return TrainConfig(**(fields | release_settings(rule) | more))


def _vlbert(
    name: str, *, multitask: bool = False, relationship: bool = False, rows: bool = False, **train: Any
) -> Case:
    network: dict[str, Any] = {
        "IMAGE_FEAT_PRECOMPUTED": True,
        "IMAGE_FINAL_DIM": _BERT["hidden_size"],
        "WITH_REL_LOSS": relationship,
        "MLM_LOSS_NORM_IN_BATCH_FIRST": rows,
        "MVRC_LOSS_NORM_IN_BATCH_FIRST": rows,
    }
    vlbert = {
        **_BERT,
        "type_vocab_size": 3,
        "visual_size": _BERT["hidden_size"],
        "visual_ln": True,
        "with_pooler": relationship,
        "visual_region_classes": NUM_LABELS,
    }
    config = vlbert_config_from_official(
        network,
        vlbert,
        "pretrain-multitask" if multitask else "pretrain",
        region_feature_size=FEATURE_SIZE,
        coordinate_embedding_size=COORDINATES,
        region_dropout=0.0,
    )
    settings = {"rate": 2e-3, "warmup": 5} | train
    return Case(
        name,
        "vl-bert",
        {**network, "VLBERT": vlbert},
        _settings("vl-bert", **settings),
        lambda: VLBertForPreTraining(config).double(),
        vlbert_checkpoint.state_from_official,
        asks_match=relationship,
        text_rows=TEXT_ROWS if multitask else 0,
        region_pauses=not rows,  # common/utils/misc.py, soft_cross_entropy: no rows to take means of then
    )


def _vilbert(name: str, *, regression: bool = False, **train: Any) -> Case:
    target = FEATURE_SIZE if regression else NUM_LABELS
    options = {**_VILBERT, "v_target_size": target, "predict_feature": regression}
    config = vilbert_checkpoint.config_from_official(options, pair_dropout=0.0)
    return Case(
        name,
        "vilbert",
        options,
        _settings("vilbert-release", **({"rate": 2e-3, "warmup": 4} | train)),
        lambda: ViLbertForPreTraining(config).double(),
        vilbert_checkpoint.state_from_official,
        labels=target,
    )


def _interbert(name: str, *, regression: bool = False) -> Case:
    target = FEATURE_SIZE if regression else NUM_LABELS
    options = {**_INTERBERT, "v_target_size": target, "predict_feature": regression}
    config = interbert_checkpoint.config_from_official(options, pair_dropout=0.0)
    return Case(
        name,
        "interbert",
        options,
        _settings("interbert-release", rate=2e-3, warmup=2),
        lambda: InterBertForPreTraining(config).double(),
        lambda official: interbert_checkpoint.state_from_official(official, config.num_hidden_layers),
        labels=target,
        region_pauses=True,
    )


def _visualbert(name: str) -> Case:
    config = VisualBertConfig(
        **{ours: _BERT[ours] for ours in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
        intermediate_size=_BERT["intermediate_size"],
        max_position_embeddings=_BERT["max_position_embeddings"],
        hidden_dropout=0.0,
        attention_dropout=0.0,
        region_feature_size=FEATURE_SIZE,
    )
    return Case(
        name,
        "visualbert",
        _BERT,
        _settings("visualbert-ucla", rate=2e-3, warmup=2),
        lambda: VisualBertForPreTraining(config).double(),
        visualbert_checkpoint.state_from_official,
        labels=0,
        segments=2,
    )


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        # Norms that some of the steps pass; in the release it is 10.
        _vlbert("vl-bert", multitask=True, clip_norm=8.0),
        _vlbert("vl-bert-accumulated", relationship=True, accumulation=2, clip_norm=4.0),
        _vlbert("vl-bert-rows", rows=True, schedule="steps", decay_steps=(9, 15), clip_norm=6.0),
        _vilbert("vilbert"),
        _vilbert("vilbert-regression-accumulated", regression=True, accumulation=2),
        _interbert("interbert"),
        _interbert("interbert-regression"),
        _visualbert("visualbert"),
    )
}
