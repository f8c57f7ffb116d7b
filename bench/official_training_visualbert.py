"""Official training of UCLA's VisualBERT: visualbert/models/model_wrapper.py ModelWrapper.step.

Its batches come from the official collate (dataloaders/coco_dataset.py, with the fields of bert_field.py and the
padding values of bert_data_utils.py). Of AllenNLP beneath it, what stands in is padding to the longest of each
dimension over the batch, and stacking (`official_visualbert_data`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from official_training import Options, Recorder, labels_of, stand_in
from official_visualbert_data import official_data
from torch import nn
from trajectory_cases import FEATURE_SIZE, ROWS, Case
from trajectory_samples import Step

from roibeam.pipelines.data.batches.sample import PretrainSample


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
    data = official_data(checkout, "coco_dataset")
    for step in samples:
        batch = data.COCODataset.collate_fn([_instance(data, row) for row in step[0]])
        # AllenNLP's fields of real numbers are float32, as the features that were drawn.
        output = model.step({name: each.double() if each.is_floating_point() else each for name, each in batch.items()})
        recorder.losses.append(output["loss"].item())


def _instance(data: Any, row: PretrainSample) -> Any:
    """What `COCODataset.__getitem__` hands to its collate, with the words and regions that were drawn."""
    fields = {
        "image_feat_variable": data.ArrayField(row.features.numpy()),
        "image_dim_variable": data.IntArrayField(np.array(len(row.boxes))),
    }
    fields["label"] = fields["image_dim_variable"]
    words = data.InputFeatures(
        unique_id=row.sample_id,
        tokens=None,
        input_ids=row.text_ids,
        input_mask=np.ones(len(row.text_ids)),
        input_type_ids=row.text_segments,
        is_correct=row.match,
        lm_label_ids=labels_of(row.text_labels),
    )
    words.insert_field_into_dict(fields)
    return data.Instance(fields)
