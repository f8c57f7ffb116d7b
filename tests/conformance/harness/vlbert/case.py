"""What the cases of the family "vlbert" share: the model of a file, its image elements, and how arrays are compared.

The release packs a row without gaps: real text, real image elements, [END], then padding. Ours are padded each; only
what is real is compared (goldens/vlbert/README.md, "Conventions").
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.case_files import ArrayError
from harness.checks import Check, apart, equal, failed, near, numpy_of, within
from harness.model_case import ModelArrays, check_sizes
from harness.tolerances import VLBERT
from harness.vlbert.pixels import PREFIX, build_region_encoder, drawn_weights, encoder_name
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.transformer import Packing
from roibeam.model.vlbert.checkpoint import (
    TABLES,
    config_from_official,
    kind_of,
    name_from_official,
    split_official,
    state_from_official,
)
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import VLBertImageElements
from roibeam.model.vlbert.model import VLBertModel
from roibeam.pipelines.training.model_files.model_checkpoint import build_model

COORDINATE_NUMBERS = 2048  # of the embedded box, hard-coded in the release (common/fast_rcnn.py)
_KNOWN = {
    "NETWORK", "VLBERT", "class", "token_ids", "backbone", "weights_seed", "trainable_cnn", "weights_spec",
    "weights_check", "ANSWER_VOCAB_SIZE",
}  # fmt: skip


@dataclass
class VLBertCase:
    """One file, opened."""

    arrays: ModelArrays
    kind: str
    network: Mapping[str, Any]  # NETWORK of its config
    config: VLBertConfig
    official: dict[str, Tensor]  # all parameters but those of the image network, by their official names
    encoder: RegionEncoder | None  # of an end-to-end case
    # Outputs of the embedding and of each layer, by the reference's names, once the model has run
    states: dict[str, Tensor] = field(default_factory=dict)

    def build(self, make: Callable[[Any], nn.Module]) -> Any:
        """The model, with the parameters of the file and no others."""
        model: Any = build_model(lambda: make(self.config), state_from_official(self.official))
        self.watch(model.vlbert)
        return model

    def watch(self, model: VLBertModel) -> None:
        """Fills `states` when the model runs."""
        places: dict[str, nn.Module] = {"embedding_output": model.embeddings}
        places |= {f"encoded_layer_{number}": layer for number, layer in enumerate(model.encoder.layers)}
        for name, module in places.items():
            module.register_forward_hook(lambda _module, _inputs, output, name=name: self.states.update({name: output}))

    def token(self, name: str) -> int:
        """Id of a special piece. Raises ValueError when the config names none, or one outside of the vocabulary."""
        ids = self.arrays.options.get("token_ids")
        number = ids.get(name) if isinstance(ids, dict) else None
        if not isinstance(number, int) or not 0 <= number < self.config.vocab_size:
            raise ValueError(f"config: token_ids has no {name} from 0 to {self.config.vocab_size - 1}")
        return number

    def elements(self, *, valid_column: int = 0, cell_weights: Tensor | None = None) -> VLBertImageElements:
        """Image elements of the file, whole image first, nothing masked.

        Args:
            valid_column: of the boxes, that tells padding by a negative number.
            cell_weights: as in `RegionEncoder.forward`, for the image network.
        """
        arrays = self.arrays
        boxes = arrays.floats("in/boxes", None, None, None)
        if boxes.shape[2] < 4 or not boxes.shape[1]:
            raise ArrayError("in/boxes", f"has shape {tuple(boxes.shape)}; expected rows, boxes and 4 numbers or more")
        real = boxes[..., valid_column] > (-1.5 if valid_column == 0 else -0.5)
        if not bool(real[:, 0].all()) or bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise ArrayError("in/boxes", "must hold the whole image first and padding last")
        corners = boxes[..., :4]
        if self.encoder is None:
            features = boxes[..., 4:]
            if features.shape[2] != self.config.region_feature_size:
                raise ArrayError(
                    "in/boxes", f"has features of width {features.shape[2]}, not {self.config.region_feature_size}"
                )
        else:
            pixels = arrays.floats("in/image", len(boxes), 3, None, None)
            features = self.encoder(pixels, corners, real, cell_weights)
        return VLBertImageElements(features, corners, real, torch.zeros_like(real))

    def image_hw(self, rows: int) -> Tensor:
        info = self.arrays.floats("in/im_info", rows, None)
        if info.shape[1] < 2 or not bool((info[:, :2] > 0).all()):
            raise ArrayError("in/im_info", "must hold widths and heights")
        return info[:, :2].flip(-1)

    # --- comparing ---

    def real(self, name: str, got: Tensor | None, where: Tensor | None = None) -> Iterator[Check]:
        """One output, where it means something; nothing when the file has no such array."""
        if f"out/{name}" in self.arrays:
            want = self.arrays.take(f"out/{name}")
            if got is None:
                yield failed(f"out/{name}", "this model gives no such output")
            else:
                mask = None if where is None else where.numpy()
                yield apart(f"out/{name}", numpy_of(got), want, VLBERT.values, mask)

    def exact(self, name: str, got: Tensor) -> Iterator[Check]:
        if f"out/{name}" in self.arrays:
            yield equal(f"out/{name}", got.long(), self.arrays.take(f"out/{name}"))

    def loss(self, name: str, got: Tensor) -> Iterator[Check]:
        if f"out/{name}" in self.arrays:
            yield loss_check(self.arrays, f"out/{name}", got)

    def state_checks(self, text_mask: Tensor, element_mask: Tensor) -> Iterator[Check]:
        """Embedding and layers, packed as the release packs them, and its attention mask."""
        keep = torch.cat([text_mask, element_mask, torch.ones(len(text_mask), 1, dtype=torch.bool)], dim=1)
        length = int(keep.sum(dim=1).max())
        valid = torch.arange(length) < keep.sum(dim=1)[:, None]
        yield from self.exact("attention_mask", valid)
        ours, theirs = Packing(keep), Packing(valid)
        last = f"encoded_layer_{self.config.num_hidden_layers - 1}"
        for name, states in (*self.states.items(), ("encoded_last", self.states[last])):
            packed = states.detach() if states.ndim == 2 else ours.pack(states.detach())
            yield from self.real(name, theirs.pad(packed), valid)

    def gradient_checks(self, model: nn.Module, loss: Tensor) -> Iterator[Check]:
        """Slices and norms of gradients, and which parameters got one."""
        slices, norms = self.arrays.below("grad/"), self.arrays.below("gradnorm/")
        if not slices and not norms:
            return
        loss.backward()
        parts = [model] if self.encoder is None else [model, self.encoder]
        gradients = {name: p.grad for part in parts for name, p in part.named_parameters() if p.grad is not None}
        for name in [*(f"grad/{official}" for official in slices), *(f"gradnorm/{official}" for official in norms)]:
            kind, _, official = name.partition("/")
            want, gradient = self.arrays.take(name), gradients.get(self.our_name(official))
            if gradient is None:
                yield failed(name, "no gradient of ours reaches this parameter")
            elif official.endswith("attention.self.key.bias"):
                # These cancel in the softmax: their gradient is rounding noise, which the README says to ignore.
                continue
            elif kind == "grad":
                step = max(1, -(-gradient.numel() // 256))
                yield near(name, numpy_of(gradient.flatten()[::step]), want, VLBERT.gradients)
            else:
                allowed = max(VLBERT.norm, VLBERT.norm_relative * float(np.abs(want).max(initial=0.0)))
                yield apart(name, numpy_of(gradient.norm()), want, allowed)
        if norms:
            without = sorted(set(gradients) - {self.our_name(official) for official in norms})
            note = f"ours reach {', '.join(without[:3])}, theirs do not" if without else ""
            yield within("gradnorm", len(without), 0, "parameters without one there", note)

    def our_name(self, official: str) -> str:
        if official.startswith((f"{PREFIX}backbone.", f"{PREFIX}roi_head_feature_extractor.")):
            return encoder_name(official)
        if self.kind == "core":
            official = f"vlbert.{official}"
        kind = kind_of(self.official)
        return name_from_official(official, kind if kind in TABLES else "pretrain")


def loss_check(arrays: ModelArrays, name: str, got: Tensor) -> Check:
    want = arrays.take(name)
    allowed = max(VLBERT.loss, VLBERT.loss_relative * float(np.abs(want).max(initial=0.0)))
    return apart(name, numpy_of(got), want, allowed)


def open_case(arrays: ModelArrays, kind: str) -> VLBertCase:
    """The case of a file with parameters.

    Args:
        kind: one of `roibeam.model.vlbert.checkpoint.KINDS`, or "core".
    Raises:
        ValueError: for options that are unknown, contradict the parameters, or are not computed here.
    """
    options = arrays.options
    network, vlbert = options.get("NETWORK"), options.get("VLBERT")
    if not isinstance(network, dict) or not isinstance(vlbert, dict):
        raise ValueError("config: NETWORK and VLBERT must be objects of options")
    if unknown := sorted(set(options) - _KNOWN):
        raise ValueError(f"config: unknown options {', '.join(unknown)}")
    stored = arrays.parameters()
    check_sizes({name: value for name, value in vlbert.items() if name != "position_padding_idx"}, len(stored))
    official = stored | drawn_weights(options, stored)
    if kind == "core":
        official = {f"vlbert.{name}": tensor for name, tensor in official.items()}
    official, encoder_weights = split_official(official)
    encoder, features = None, 8  # `core` starts behind the features
    if encoder_weights:
        edges = [int(arrays.take(f"in/{name}")) for name in ("min_size", "max_size") if f"in/{name}" in arrays]
        encoder = build_region_encoder(encoder_weights, network, (edges[0], edges[1]) if len(edges) == 2 else (1, 1))
        features = encoder.feature_dim
    elif kind != "core":
        projection = official.get(f"{PREFIX}obj_downsample.1.weight")
        if projection is None or projection.ndim != 2:
            raise ValueError(f"parameter {PREFIX}obj_downsample.1.weight: the file has none")
        features = projection.shape[1] - COORDINATE_NUMBERS
    overrides: dict[str, Any] = {"region_feature_size": features, "coordinate_embedding_size": COORDINATE_NUMBERS}
    if kind == "vqa":
        overrides["num_answers"] = options.get("ANSWER_VOCAB_SIZE", 3129)
    if kind == "vcr" and "cnn_loss_reg.2.bias" in official:
        overrides["num_object_labels"] = len(official["cnn_loss_reg.2.bias"])
    config = config_from_official(network, vlbert, "pretrain" if kind == "core" else kind, **overrides)
    return VLBertCase(arrays, kind, network, config, official, encoder)
