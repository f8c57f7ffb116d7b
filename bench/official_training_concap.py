"""Official training of ViLBERT and of InterBERT, which took its script: train_concap.py main."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from official_training import (
    PADDED_REGIONS,
    PADDED_TEXT,
    DoubleNumpy,
    Recorder,
    labels_of,
    load_script,
    padded,
    stand_in,
)
from torch import nn
from trajectory_cases import FEATURE_SIZE, ROWS, Case
from trajectory_samples import Step

from roibeam.pipelines.data.batches.sample import PretrainSample


class _TrainedEnough(Exception):
    """Instead of the evaluation after an epoch."""


# Package, module and class of the model.
_CODES = {
    "vilbert": ("vilbert", "vilbert.vilbert", "BertForMultiModalPreTraining"),
    "interbert": ("bertmodel", "bertmodel.modules", "InterBertForMultiModalPreTraining"),
}


def train(case: Case, checkout: Path, folder: Path, samples: list[Step], recorder: Recorder) -> None:
    package, model_module, model_class = _CODES[case.system]

    def add_scalar(tag: str, value: float, step: int) -> None:
        if tag == "loss_0/train":
            recorder.losses.append(value)

    sys.path.insert(0, str(checkout))
    stand_in("tensorboardX", SummaryWriter=lambda **_: SimpleNamespace(add_scalar=add_scalar))
    stand_in("tensorpack.dataflow")
    stand_in("scipy.spatial")
    datasets = stand_in(f"{package}.datasets", __path__=[str(checkout / package / "datasets")])
    del sys.modules[package]  # the real one
    loading = importlib.import_module(f"{package}.datasets.concept_cap_dataset")
    loading.np = DoubleNumpy()
    micro_batches = [batch for step in samples for batch in step]
    batches = [_concap_batch(case, batch, with_joint_mask=case.system == "interbert") for batch in micro_batches]

    def init(self: Any, *_: Any, **__: Any) -> None:
        self.num_dataset, self.cond_mask = ROWS * len(batches), False
        self.ds = SimpleNamespace(get_data=lambda: iter(batches), size=lambda: len(batches))

    def stop(self: Any) -> int:
        raise _TrainedEnough

    loading.ConceptCapLoaderTrain.__init__ = init
    loading.ConceptCapLoaderVal.__init__ = lambda self, *_, **__: None
    loading.ConceptCapLoaderVal.__len__ = stop
    vars(datasets).update({name: getattr(loading, name) for name in ("ConceptCapLoaderTrain", "ConceptCapLoaderVal")})
    optimization = importlib.import_module(f"{package}.optimization")  # that of the package, in the checkout
    stand_in("pytorch_pretrained_bert.optimization", **vars(optimization))
    tokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: None)
    stand_in("pytorch_pretrained_bert.tokenization", BertTokenizer=tokenizer)
    network = getattr(importlib.import_module(model_module), model_class)

    def start(name: str, config: Any) -> nn.Module:
        config.v_target_size = case.options["v_target_size"]  # the script writes a published one over it
        return recorder.prepare(network(config))

    network.from_pretrained = start
    script = load_script(checkout / "train_concap.py", f"{package}_train_concap")
    file = folder / "case.json"
    file.write_text(json.dumps(dict(case.options)))
    ours = case.train
    arguments = {
        "config_file": file,
        "from_pretrained": "bert-base-uncased",
        "output_dir": folder,
        "save_name": "run",
        "train_batch_size": ROWS * ours.accumulation,
        "gradient_accumulation_steps": ours.accumulation,
        "learning_rate": ours.learning_rate,
        "num_train_epochs": 1,
        "warmup_proportion": ours.warmup_steps / ours.steps,
    }
    sys.argv[:] = [script.__name__, *(word for name, value in arguments.items() for word in (f"--{name}", str(value)))]
    if case.options["predict_feature"]:
        sys.argv.append("--predict_feature")
    os.chdir(checkout)  # it reads names of BERT's parameters from config/
    with contextlib.suppress(_TrainedEnough):
        script.main()


def _concap_batch(case: Case, rows: Sequence[PretrainSample], *, with_joint_mask: bool) -> list[Any]:
    """A batch as it comes out of tensorpack, before the loader puts the whole image in front."""
    text_mask = padded((np.ones(len(row.text_ids), np.int64) for row in rows), PADDED_TEXT)
    region_mask = padded((np.ones(len(row.boxes), np.int64) for row in rows), PADDED_REGIONS)
    features = (row.features.double().numpy() * ~row.masked[:, None] for row in rows)
    batch = [
        padded((row.text_ids for row in rows), PADDED_TEXT),
        text_mask,
        padded((row.text_segments for row in rows), PADDED_TEXT),
        padded((labels_of(row.text_labels) for row in rows), PADDED_TEXT, fill=-1),
        np.array([1 - int(row.match or 0) for row in rows]),  # 0 = the caption is the image's
        padded(features, PADDED_REGIONS, FEATURE_SIZE),
        padded((_locations(row) for row in rows), PADDED_REGIONS, 5),
        padded((row.targets.double().numpy() for row in rows if row.targets is not None), PADDED_REGIONS, case.labels),
        padded((np.where(row.predicted, 1, -1) for row in rows), PADDED_REGIONS, fill=-1),
        region_mask,
    ]
    if with_joint_mask:
        batch.append(np.concatenate([region_mask, text_mask], axis=1))
    return [*batch, np.arange(len(rows))]


def _locations(row: PretrainSample) -> np.ndarray:
    """(R, 5) as `BertPreprocessBatch.__call__` has them."""
    left, top, right, bottom = row.boxes.astype(np.float64).T
    area = (bottom - top) * (right - left) / (float(row.width) * float(row.height))
    return np.stack([left / row.width, top / row.height, right / row.width, bottom / row.height, area], axis=1)
