"""Official training of UCLA's VisualBERT: visualbert/models/model_wrapper.py ModelWrapper.step."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from official_training import PADDED_REGIONS, PADDED_TEXT, Options, Recorder, labels_of, padded, stand_in
from torch import Tensor, nn
from trajectory_cases import FEATURE_SIZE, ROWS, Case
from trajectory_samples import Step

from pipelines.pretraining.sample import PretrainSample


def train(case: Case, checkout: Path, folder: Path, samples: list[Step], recorder: Recorder) -> None:
    sys.path[:0] = [str(checkout), str(checkout / "visualbert")]
    kinds: dict[str, Any] = {}

    class Model(nn.Module):
        """What the code takes of AllenNLP's."""

        def __init__(self, vocab: object) -> None:
            super().__init__()

        @staticmethod
        def register(name: str) -> Any:
            return lambda kind: kinds.setdefault(name, kind)

        @staticmethod
        def from_params(vocab: object, params: Mapping[str, Any]) -> nn.Module:
            arguments = dict(params)
            return recorder.prepare(kinds[arguments.pop("type")](vocab, **arguments))

    for name in ("allennlp.common.params", "allennlp.common.util", "allennlp.data.vocabulary", "allennlp.modules"):
        stand_in(name)
    for name in ("learning_rate_schedulers", "optimizers", "metrics", "trainer"):
        stand_in(f"allennlp.training.{name}")
    stand_in("allennlp.modules.matrix_attention")
    stand_in("allennlp.nn.util")
    stand_in("allennlp.common.params", Params=dict)
    stand_in("allennlp.models", Model=Model)
    stand_in("allennlp.models.model", Model=Model)
    for name in ("pandas", "utils.detector"):
        stand_in(name)
    del sys.modules["utils"]
    modeling = importlib.import_module("pytorch_pretrained_bert.modeling")
    importlib.import_module("visualbert.models.model")
    wrapper = importlib.import_module("visualbert.models.model_wrapper")

    def start(kind: Any, name: str, cache_dir: str, random_initialize: bool, **arguments: Any) -> nn.Module:
        return kind(modeling.BertConfig.from_dict(dict(case.options)), **arguments)

    modeling.TrainVisualBERTObjective.from_pretrained = classmethod(start)
    ours = case.train
    arguments = Options(
        train_batch_size=ROWS,
        num_train_epochs=1,
        learning_rate=ours.learning_rate,
        warmup_proportion=ours.warmup_steps / ours.steps,
        model={
            "type": "VisualBERTFixedImageEmbedding",
            "training_head_type": "pretraining",
            "visual_embedding_dim": FEATURE_SIZE,
            "special_visual_initialize": True,
        },
    )
    model = wrapper.ModelWrapper(arguments, ROWS * ours.steps)
    model.train()
    for step in samples:
        output = model.step(_visualbert_batch(step[0]))
        recorder.losses.append(output["loss"].item())


def _visualbert_batch(rows: Sequence[PretrainSample]) -> dict[str, Tensor]:
    """Arguments of `VisualBERTFixedImageEmbedding.forward`, as the fields of a COCO batch."""
    fields = {
        "bert_input_ids": padded((row.text_ids for row in rows), PADDED_TEXT),
        "bert_input_mask": padded((np.ones(len(row.text_ids), np.int64) for row in rows), PADDED_TEXT),
        "bert_input_type_ids": padded((row.text_segments for row in rows), PADDED_TEXT),
        "masked_lm_labels": padded((labels_of(row.text_labels) for row in rows), PADDED_TEXT, fill=-1),
        "is_random_next": np.array([[row.match] for row in rows]),
        "image_dim_variable": np.array([len(row.boxes) for row in rows]),
        "image_feat_variable": padded((row.features.numpy() for row in rows), PADDED_REGIONS, FEATURE_SIZE),
    }
    return {name: torch.from_numpy(array) for name, array in fields.items()}
