"""A run of VisualBERT's release on Flickr30k Entities, derived by hand: the forward pass from official names, BertAdam,
and the accidents of goldens/finetune_visualbert/README.md. It makes reference files of batches that no file has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
BETAS, EPSILON = (0.9, 0.999), 1e-6


def _linear(weights: Weights, name: str, states: Tensor) -> Tensor:
    return F.linear(states, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Weights, name: str, states: Tensor) -> Tensor:
    return F.layer_norm(states, states.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)


def states_of(weights: Weights, batch: Mapping[str, Tensor], sizes: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """(B, T + R, H) last states, padding's too, and the mask; text first."""
    ids, regions = batch["bert_input_ids"], batch["image_feat_variable"]
    root = "bert.bert.embeddings."
    text = F.embedding(ids, weights[f"{root}word_embeddings.weight"], padding_idx=0)
    text = text + weights[f"{root}position_embeddings.weight"][: ids.shape[1]]
    text = text + weights[f"{root}token_type_embeddings.weight"][batch["bert_input_type_ids"]]
    image = _linear(weights, f"{root}projection", regions)
    image = image + weights[f"{root}position_embeddings_visual.weight"][0]
    image = image + weights[f"{root}token_type_embeddings_visual.weight"][0]
    states = _norm(weights, f"{root}LayerNorm", torch.cat([text, image], dim=1))
    shown = torch.arange(regions.shape[1]) < batch["image_dim_variable"][:, None]
    mask = torch.cat([batch["bert_input_mask"].bool(), shown], dim=1)
    hidden = (1.0 - mask[:, None, None].double()) * -10000.0
    heads = sizes["num_attention_heads"]
    for layer in range(sizes["num_hidden_layers"]):
        name = f"bert.bert.encoder.layer.{layer}."
        query, key, value = (
            _linear(weights, f"{name}attention.self.{part}", states).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        looks = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + hidden).softmax(dim=-1)
        looked = _linear(weights, f"{name}attention.output.dense", (looks @ value).transpose(1, 2).flatten(2))
        states = _norm(weights, f"{name}attention.output.LayerNorm", states + looked)
        wide = F.gelu(_linear(weights, f"{name}intermediate.dense", states))
        states = _norm(weights, f"{name}output.LayerNorm", states + _linear(weights, f"{name}output.dense", wide))
    return states, mask


def grounded(weights: Weights, batch: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Loss and counts of a batch. A position is a place among text and regions: behind the text stand regions."""
    states, mask = states_of(weights, batch, sizes)
    length, positions, label = batch["bert_input_ids"].shape[1], batch["flickr_position"], batch["label"]
    asked = positions >= 0
    phrases = states.gather(1, positions.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1]))
    query = _linear(weights, "bert.flickr_attention.query", phrases)
    key = _linear(weights, "bert.flickr_attention.key", states[:, length:])
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    logs = (scores + (1.0 - mask[:, None, length:].double()) * -10000.0).log_softmax(dim=-1)
    number = asked.sum()
    hits = (label > 0).double().gather(2, logs.argmax(dim=-1, keepdim=True)).sum()
    return {
        "loss": F.kl_div(logs, label, reduction="batchmean"),
        "entity_num": number,
        "accuracy": hits / number,
        "upperbound_accuracy": label.sum() / number,
    }


def _rate(update: int, updates: int, warmup: float) -> float:
    done = update / updates
    return done / warmup if done < warmup else max((done - 1) / (warmup - 1), 0.0)


def _step(
    weights: dict[str, Tensor], config: Mapping[str, Any], moments: dict[str, tuple[Tensor, Tensor]], rate: float
) -> None:
    """BertAdam: each tensor is clipped to norm 1 by itself; moments are not corrected."""
    for group in config["groups"]:
        for name in group["params"]:
            gradient = weights[name].grad
            if gradient is None:
                continue
            gradient = gradient * min(1.0 / (float(gradient.norm()) + 1e-6), 1.0)
            first, second = moments.get(name, (torch.zeros_like(gradient), torch.zeros_like(gradient)))
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
            moments[name] = first, second
            with torch.no_grad():
                change = first / (second.sqrt() + EPSILON) + group["weight_decay"] * weights[name]
                weights[name] -= group["lr"] * rate * change


def run_as_released(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a case of this kind, its outputs and last weights derived from its inputs."""
    config = json.loads(str(arrays["config"]))
    weights = {
        name.removeprefix("param/"): torch.from_numpy(value).double().requires_grad_(True)
        for name, value in arrays.items()
        if name.startswith("param/")
    }
    made = {name: value for name, value in arrays.items() if not name.startswith(("out/", "final"))}
    order = arrays["out/batch_of_micro_step"]
    made["out/batch_of_micro_step"], told = order, dict[str, list[float]]()
    every = config["args"]["gradient_accumulation_steps"]
    moments: dict[str, tuple[Tensor, Tensor]] = {}
    norms: list[list[float]] = []
    changes: list[list[float]] = []
    rates: list[list[float]] = []
    for place, number in enumerate(order.tolist()):
        start = f"in/{number}."
        batch = {n.removeprefix(start): torch.from_numpy(v) for n, v in arrays.items() if n.startswith(start)}
        batch = {n: v.double() if v.is_floating_point() else v for n, v in batch.items()}
        found = grounded(weights, batch, config["bert"])
        for name, value in found.items():
            told.setdefault("loss_per_micro_step" if name == "loss" else name, []).append(float(value.detach()))
        for weight in weights.values():
            weight.grad = None  # at the head of every micro-step: only the last one counts
        (found["loss"] / every).backward()
        if (place + 1) % every:
            continue
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        norms.append([0.0 if (g := weights[name].grad) is None else float(g.norm()) for name in config["trainable"]])
        rate = _rate(len(rates), config["t_total"], config["args"]["warmup_proportion"])
        _step(weights, config, moments, rate)
        changes.append([float((weights[name].detach() - before[name]).norm()) for name in config["trainable"]])
        rates.append([group["lr"] * rate for group in config["groups"]])
    made |= {f"out/{name}": np.array(values) for name, values in told.items()}
    made["out/lr_per_update"] = np.array(rates)
    made["out/param_grad_norm"], made["out/param_change_norm"] = np.array(norms).T, np.array(changes).T
    made["out/grad_norm_per_update"] = np.sqrt((np.array(norms) ** 2).sum(axis=1))
    for name in (each.removeprefix("final/") for each in arrays if each.startswith("final/")):
        made[f"final/{name}"] = weights[name].detach().numpy()
    return made


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)
