"""Official training of VL-BERT: pretrain/function/train.py train_net, with its trainer and its collate."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml
from official_training import Options, Recorder, labels_of, stand_in
from torch import nn
from trajectory_cases import COORDINATES, FEATURE_SIZE, ROWS, Case
from trajectory_samples import Step

from roibeam.pipelines.data.batches.sample import PretrainSample


def train(case: Case, checkout: Path, folder: Path, samples: list[Step], recorder: Recorder) -> None:
    def add_scalar(tag: str, scalar_value: float, global_step: int) -> None:
        if tag == "Train-Loss":
            recorder.losses.append(scalar_value)
        elif tag == "grad-para/Total-Norm":
            recorder.norm_before_clipping = scalar_value

    sys.path.insert(0, str(checkout))
    stand_in("tensorboardX", SummaryWriter=lambda **_: SimpleNamespace(add_scalar=add_scalar))
    stand_in("easydict", EasyDict=Options)
    sys.modules.setdefault("common.lib.roi_pooling.C_ROIPooling", ModuleType("C_ROIPooling"))
    collate = _vlbert_collate()
    micro_batches = [batch for step in samples for batch in step]
    images = _Loader(collate(_IMAGE_FIELDS, [_vlbert_item(row) for row in batch[:ROWS]]) for batch in micro_batches)
    texts = _Loader(collate(_TEXT_FIELDS, [_text_item(row) for row in batch[ROWS:]]) for batch in micro_batches)

    def loader(config: Any, mode: str, **_: Any) -> Any:
        return images if mode == "train" else []

    def loaders(config: Any, mode: str, **_: Any) -> Any:
        return [images, texts] if mode == "train" else [_Loader(()), _Loader(())]

    stand_in("pretrain.data.build", make_dataloader=loader, make_dataloaders=loaders)
    script = importlib.import_module("pretrain.function.train")
    settings = importlib.import_module("pretrain.function.config")
    settings.yaml = SimpleNamespace(load=yaml.safe_load)
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(_vlbert_yaml(case, checkout, folder, len(micro_batches))))
    settings.update_config(str(file))
    kind = getattr(script, settings.config.MODULE)
    for module in (sys.modules[each.__module__] for each in kind.__mro__ if "resnet_vlbert" in each.__module__):
        module.BertTokenizer = SimpleNamespace(from_pretrained=lambda *_: None)

    def make(config: Any) -> nn.Module:
        model: Any = kind(config)
        # Widths that are written into the code.
        model.image_feature_extractor.obj_downsample[1] = nn.Linear(COORDINATES + FEATURE_SIZE, 24)
        model.object_mask_visual_embedding = nn.Embedding(1, FEATURE_SIZE)
        return recorder.prepare(model)

    setattr(script, settings.config.MODULE, make)
    script.train_net(SimpleNamespace(cfg=str(file), log_dir=str(folder), cudnn_off=False, dist=False), settings.config)


_IMAGE_FIELDS = ("image", "boxes", "im_info", "text", "relationship_label", "mlm_labels", "mvrc_ops", "mvrc_labels")
_TEXT_FIELDS = ("text", "mlm_labels")


class _Loader(list[Any]):
    """Batches, as a loader that a second one may be read beside."""

    batch_sampler = SimpleNamespace(sampler=None)


def _vlbert_collate() -> Any:
    collator = importlib.import_module("pretrain.data.collate_batch").BatchCollator

    def collate(names: Sequence[str], items: Sequence[Sequence[Any]]) -> Any:
        return collator(SimpleNamespace(test_mode=False, data_names=list(names)))(list(items)) if items else ()

    return collate


def _vlbert_item(row: PretrainSample) -> tuple[Any, ...]:
    """What pretrain/data/datasets/conceptual_captions.py gives for one caption, whole image first."""
    features, shown = row.features.double().numpy(), ~row.masked
    whole = (features * shown[:, None]).sum(axis=0) / (shown.sum() + 1e-5)
    corners = np.vstack([[0.0, 0.0, row.width - 1.0, row.height - 1.0], row.boxes])
    boxes = np.hstack([corners, np.vstack([whole, features])])
    assert row.targets is not None
    targets = np.vstack([np.zeros(row.targets.shape[1]), row.targets.double().numpy()])
    info = torch.tensor([row.width, row.height, 1.0, 1.0, 0.0], dtype=torch.float64)
    hidden = [0, *row.masked.astype(int).tolist()]
    match = 1 if row.match is None else row.match
    return None, torch.from_numpy(boxes), info, *_text_item(row)[:1], match, *_text_item(row)[1:], hidden, targets


def _text_item(row: PretrainSample) -> tuple[list[int], list[int]]:
    return row.text_ids.tolist(), labels_of(row.text_labels).tolist()


def _vlbert_yaml(case: Case, checkout: Path, folder: Path, num_batches: int) -> dict[str, Any]:
    """The published file with the case's sizes and settings."""
    ours = case.train
    config = yaml.safe_load((checkout / "cfgs/pretrain/base_prec_4x16G_fp32.yaml").read_text())
    network = dict(case.options)
    vlbert = network.pop("VLBERT")
    config["NETWORK"]["VLBERT"] |= vlbert | {"from_scratch": True}
    config["NETWORK"] |= network | {"BERT_MODEL_NAME": ""}
    config |= {"OUTPUT_PATH": str(folder), "GPUS": "0", "RNG_SEED": -1, "MODULE": "ResNetVLBERTForPretrainingMultitask"}
    config["TRAIN"] |= {
        "BATCH_IMAGES": [ROWS, case.text_rows],
        # A rate per sample there, for the whole batch here.
        "LR": ours.learning_rate / (case.rows * ours.accumulation),
        "GRAD_ACCUMULATE_STEPS": ours.accumulation,
        "WARMUP_STEPS": ours.warmup_steps,
        "CLIP_GRAD_NORM": ours.clip_norm,
        "END_EPOCH": 1,
        "AUTO_RESUME": False,
    }
    if not case.text_rows:
        config["DATASET"], config["MODULE"] = config["DATASET"][0], "ResNetVLBERTForPretraining"
        config["TRAIN"] |= {"BATCH_IMAGES": ROWS, "LOSS_LOGGERS": ["mlm_loss,MLMLoss", "mvrc_loss,MVRCLoss"]}
    if ours.schedule == "steps":
        # In epochs, of which the run is one; a milestone names the step that falls, ours the last before it.
        falls = ",".join(str((last + 1) / num_batches * ours.accumulation) for last in ours.decay_steps)
        config["TRAIN"] |= {"LR_SCHEDULE": "step", "LR_STEP": falls, "LR_FACTOR": ours.decay_factor}
    return config
