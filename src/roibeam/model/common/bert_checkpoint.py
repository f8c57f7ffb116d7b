"""Starting from a published BERT: its names made one, and what of a model it fills."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from roibeam.model.common.key_table import tidy_names

_STREAM = ("embeddings.", "encoder.", "pooler.")
_SEGMENTS = "segments.weight"
# What files hold twice, and the buffer of position numbers in older ones.
_LEFT_OUT = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids")


def tidy_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """BERT's parameters as `bert.*` and `cls.*`, each once.

    Args:
        bert: state dict of a pre-training model or of the encoder alone, with the LayerNorm names of any time.
    Raises:
        ValueError: when two parameters come to have one name, or the file holds no BERT.
    """
    named = {f"bert.{name}" if name.startswith(_STREAM) else name: tensor for name, tensor in bert.items()}
    tidy = {name: t for name, t in tidy_names(named).items() if name not in _LEFT_OUT}
    if "bert.embeddings.word_embeddings.weight" not in tidy:
        raise ValueError("the checkpoint is no BERT: it has no bert.embeddings.word_embeddings.weight")
    return tidy


def load_start(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Fills part of `model`; everything else stays as it is.

    A table of segments may have more rows than `state` has: the first ones are filled.

    Args:
        state: by our names, from a `state_from_bert`.
    Returns:
        Names of the parameters that were not filled.
    Raises:
        ValueError: naming a parameter that the model does not have, or has in another shape.
    """
    ours = model.state_dict()
    filled = dict(state)
    for name, tensor in state.items():
        if name in ours and name.endswith(_SEGMENTS) and tensor.shape[1:] == ours[name].shape[1:]:
            filled[name] = torch.cat([tensor.to(ours[name]), ours[name][len(tensor) :]])
        if name not in ours or ours[name].shape != filled[name].shape:
            wanted = tuple(ours[name].shape) if name in ours else "no such parameter"
            raise ValueError(
                f"{name}: BERT has {tuple(tensor.shape)}, this model {wanted}; do its sizes and vocabulary fit?"
            )
    model.load_state_dict(filled, strict=False)
    return [name for name in ours if name not in state]
