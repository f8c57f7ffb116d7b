"""VL-BERT's official end-to-end checkpoints (jackroos/VL-BERT), read into a joint model and written from one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from roibeam.extraction.network.state import check_state
from roibeam.extraction.weights.families import COUNTER, DATA_PARALLEL_PREFIX, VLBERT_PREFIX, family_names, name_weights
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_weights
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.vlbert.checkpoint import split_official, state_from_official, state_to_official
from roibeam.pipelines.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.model_files.model_checkpoint import check_parameters
from roibeam.pipelines.training.checkpoint import sync_to_disk

# The release saves the last stage twice, under these two names.
_LAST_STAGE, _LAST_STAGE_AGAIN = (
    "image_feature_extractor.roi_head_feature_extractor.",
    "image_feature_extractor.head.0.",
)


def load_official_joint(spec: str, joint: EndToEndModel) -> None:
    """Fills model and encoder, or neither, from an official checkpoint; nothing in the file is executed.

    Args:
        spec: a file, or a URL, as `fetch_weights` takes it.
        joint: a VL-BERT, for pre-training or a task, whose config fits the checkpoint (`config_from_official`), with
            its encoder.
    Raises:
        ValueError: when the file cannot be read as tensors, holds no image network, or its tensors are not exactly
            those of `joint`.
        OSError: when it cannot be fetched.
    """
    source = f"weights {spec}"
    found = {name: value for name, value in read_tensors(fetch_weights(spec)).items() if isinstance(value, Tensor)}
    official, network = split_official(found)
    if not network:
        raise ValueError(
            f"{source}: holds no image network, so it was trained on stored features; load it without a region encoder"
        )
    encoder = check_state(name_weights(network, source).tensors, region_encoder_of(joint).state_dict(), source)
    state = {f"model.{name}": tensor.float() for name, tensor in state_from_official(official).items()}
    state |= {f"region_encoder.{name}": tensor for name, tensor in encoder.items()}
    try:
        check_parameters(state, joint.state_dict())
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    joint.load_state_dict(state)


def official_joint_state(joint: EndToEndModel, kind: str = "pretrain") -> dict[str, Tensor]:
    """Every tensor by its official name, as the release saves them: the last stage twice, norms with their counters.

    Args:
        kind: of the model, as `state_to_official` takes it, such as "vcr-1fc".
    Raises:
        ValueError: for a model that is not a VL-BERT of this kind.
    """
    state, model_prefix, encoder_prefix = joint.state_dict(), "model.", "region_encoder."
    ours = {name.removeprefix(model_prefix): t for name, t in state.items() if name.startswith(model_prefix)}
    official = state_to_official(ours, kind)
    names = family_names("vlbert-checkpoint")
    for name, tensor in state.items():
        if not name.startswith(encoder_prefix):
            continue
        theirs = VLBERT_PREFIX + names[name.removeprefix(encoder_prefix)]
        official[theirs] = tensor
        if theirs.endswith(".running_var"):
            official[theirs.removesuffix("running_var") + COUNTER] = torch.tensor(0)
    again = {name: t for name, t in official.items() if name.startswith(_LAST_STAGE)}
    return official | {_LAST_STAGE_AGAIN + name.removeprefix(_LAST_STAGE): tensor for name, tensor in again.items()}


def save_official_joint(joint: EndToEndModel, path: str | Path, kind: str = "pretrain") -> Path:
    """Writes `{"state_dict": {"module....": tensor}}`, which the official code and `load_official_joint` read.

    Args:
        kind: as in `official_joint_state`.
    Raises:
        ValueError: for a model that is not a VL-BERT of this kind.
    """
    final = Path(path)
    official = {DATA_PARALLEL_PREFIX + name: tensor for name, tensor in official_joint_state(joint, kind).items()}
    aside = final.with_name(f".writing-{final.name}")
    torch.save({"state_dict": official}, aside)
    sync_to_disk(aside)
    aside.rename(final)
    sync_to_disk(final.parent)
    return final
