"""Official checkpoints of models into roibeam's folders, and back: written aside, read back, compared, then renamed."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from roibeam.extraction.weights import detector_choice
from roibeam.extraction.weights.detector_choice import describe_detector, read_detector_folder
from roibeam.extraction.weights.families import DATA_PARALLEL_PREFIX
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.loading import build_detector
from roibeam.model.common.bert import StrictConfig
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    JointCheckpoint,
    JointDetector,
    load_joint,
    load_model_or_joint,
    load_official_joint,
    region_encoder_of,
    save_joint,
    save_official_joint,
)
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint, read_model
from roibeam.pipelines.training.model_files.model_folder import OF_VLBERT, check_converted_output, settings_beside
from roibeam.pipelines.training.model_files.published_models import VLBERT, system_of, writer_of
from roibeam.pipelines.training.run_folder.files import sync_to_disk, write_json


@dataclass(frozen=True)
class ModelConversion:
    """Result of a conversion.

    Attributes:
        model: name of roibeam's class.
        changes: left-out parts and assumptions, for people.
        settings: the JSON beside an official file, with the settings that the file lacks; None for others.
        settings_alone: those of them that would be read differently without it, for people.
    """

    model: str
    num_tensors: int
    changes: tuple[str, ...]
    settings: Path | None = None
    settings_alone: tuple[str, ...] = ()


def convert_model(spec: str, out: Path, *, to: str, options: Path | None = None) -> ModelConversion:
    """
    Args:
        spec, options: as `load_model`.
        out: for "roibeam" and "detector" a folder, for "official" a file, beside which its settings are written
            (`settings_beside`); must not be there yet.
        to: one of `DIRECTIONS`; "detector" is the detector of a run end to end that learned from labelled photos too.
    Raises:
        ValueError: for another direction; if the model cannot be read or written so, or reads back differently.
        OSError: if a disk fails.
    """
    check_converted_output(out, to)
    found = load_model_or_joint(spec, options=options)
    model, changes = found.model, found.changes
    alone: tuple[str, ...] = ()
    settings = settings_beside(out) if to == "official" else None
    aside = out.with_name(f".part-{os.getpid()}-{out.name}")
    try:
        if to == "detector":
            written = _write_detector(found, aside)
        elif isinstance(found, JointCheckpoint):
            written = _write_joint(found.joint, aside, to)
        elif to == "roibeam":
            model.save_pretrained(aside)
            written = len(model.state_dict())
            _check_same(model, read_model(str(aside)).model, aside)
            for path in (*aside.iterdir(), aside):
                sync_to_disk(path)
        else:
            writer = writer_of(model)
            official = writer.to_official(model)
            if options is None:
                changes += writer.check_sizes(model)
            written = len(official)
            if out.suffix == OF_VLBERT and writer is not VLBERT:
                raise ValueError(
                    f"{out}: files in {OF_VLBERT} are VL-BERT's, this is a {writer.name}; name a .bin file"
                )
            _write(official, aside)
            sync_to_disk(aside)
        if settings is not None:
            alone = _write_settings(model, aside)
            settings_beside(aside).rename(settings)
        aside.rename(out)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        aside.unlink(missing_ok=True)
        if settings is not None:
            settings_beside(aside).unlink(missing_ok=True)
            settings.unlink(missing_ok=True)  # it was not there before
        raise
    return ModelConversion(type(model).__name__, written, changes, settings, alone)


def _write_settings(model: PreTrainedModel, weights: Path) -> tuple[str, ...]:
    """Writes the settings beside an official file, and reads both back; returns the settings that would differ without
    them."""
    config: Any = model.config
    fields = {name: getattr(config, name) for name in config.own_fields()}
    described = {"model_type": config.model_type, "architectures": [type(model).__name__], **fields}
    write_json(settings_beside(weights), described)
    sync_to_disk(settings_beside(weights))
    again: Any = read_model(str(weights)).model
    _check_same(model, again, weights)
    different = _different(config, again.config)
    if different:
        raise ValueError(f"{settings_beside(weights)} reads differently: {', '.join(different)}; nothing was kept")
    named = {name: tensor for name, tensor in read_tensors(weights).items() if isinstance(tensor, Tensor)}
    try:
        without = system_of(named).understand(named, None).config
    except ValueError as error:
        return (f"without it the file is not read: {error}",)
    return tuple(f"{name} {own!r}, else {read!r}" for name, (own, read) in _different(config, without).items())


def _write_joint(joint: EndToEndModel, path: Path, to: str) -> int:
    """A model with its region encoder, read back and compared; returns the number of its tensors."""
    if to == "roibeam":
        _check_same(joint, load_joint(save_joint(joint, path)), path)
    else:
        if path.suffix == ".safetensors":
            raise ValueError("VL-BERT's official code reads no .safetensors; name a .pth or .bin file")
        # The official code has no detector beside the region encoder.
        joint = EndToEndModel(joint.model, region_encoder_of(joint), joint.choices)
        save_official_joint(joint, path)
        again = copy.deepcopy(joint)
        for tensor in again.state_dict().values():
            tensor.zero_()
        load_official_joint(str(path), again)
        _check_same(joint, again, path)
        sync_to_disk(path)
    return len(joint.state_dict())


def _write_detector(found: ModelCheckpoint, path: Path) -> int:
    """A detector's folder, read back and compared; returns the number of its tensors."""
    joint = found.joint if isinstance(found, JointCheckpoint) else None
    if not isinstance(joint, JointDetector):
        raise ValueError(f"{found.source} holds no detector; a run of pretrain --end-to-end with --labels does")
    detector = joint.detection.detector(region_encoder_of(joint))
    state = {name: tensor.contiguous() for name, tensor in detector.state_dict().items()}
    path.mkdir()
    save_file(state, path / detector_choice.WEIGHTS_NAME)
    described = describe_detector(detector.config, detector.conventions, joint.class_names, joint.attribute_names)
    write_json(path / detector_choice.CONFIG_NAME, described)
    folder = read_detector_folder(path)
    again = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions)
    _check_same(detector, again, path)
    for each in (*path.iterdir(), path):
        sync_to_disk(each)
    return len(state)


def _write(official: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file({name: tensor.clone() for name, tensor in official.items()}, path)  # it refuses shared memory
    elif path.suffix == OF_VLBERT:  # as the release's trainer saves, and reads
        torch.save({"state_dict": {DATA_PARALLEL_PREFIX + name: tensor for name, tensor in official.items()}}, path)
    else:
        torch.save(official, path)


def _check_same(model: nn.Module, again: nn.Module, path: Path) -> None:
    before, after = model.state_dict(), again.state_dict()
    different = sorted(before.keys() ^ after.keys())
    different += [name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])]
    if type(again) is not type(model) or different:
        raise ValueError(
            f"{path} reads as {type(again).__name__}, not {type(model).__name__}, or differs in "
            f"{', '.join(different[:3]) or 'no parameter'}; nothing was kept"
        )


def _different(config: StrictConfig, again: StrictConfig) -> dict[str, tuple[object, object]]:
    """Name -> both values, of the fields that differ."""
    pairs = {name: (getattr(config, name), getattr(again, name, None)) for name in config.own_fields()}
    return {name: values for name, values in pairs.items() if values[0] != values[1]}
