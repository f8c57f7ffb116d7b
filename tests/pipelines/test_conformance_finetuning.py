"""Items and runs of fine-tuning that no reference array has: derived by hand from those that there are, or by the
forward pass, BertAdam and the accidents of VisualBERT's release (goldens/finetune_visualbert/README.md)."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_cases import Arrays, read, run_changed
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


def run_as_released(arrays: Arrays) -> Arrays:
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


def cut_phrases(arrays: Arrays) -> Arrays:
    """With some phrases where the release looks for a word that `max_seq_length` cuts: at [SEP], at a region of the
    row, at padding behind its regions; every row is as long as its batch then, as rows that are cut are."""
    made = dict(arrays)
    for number in range(6):
        ids, positions = arrays[f"in/{number}.bert_input_ids"], arrays[f"in/{number}.flickr_position"].copy()
        width = ids.shape[1]
        for row in range(len(ids)):
            asked = int((positions[row] >= 0).sum())
            places = (width - 1, width + number % 2, width + 4)
            positions[row, :asked] = [places[p % 3] for p in range(number, number + asked)]
        made[f"in/{number}.flickr_position"] = positions
        made[f"in/{number}.bert_input_mask"] = np.ones_like(ids)
        made[f"in/{number}.bert_input_ids"] = np.where(ids == 0, 7, ids)
    return made


def test_a_run_whose_phrases_lie_behind_a_cut_text_is_the_release_s(tmp_path: Path) -> None:
    """No reference file has such phrases: one is derived by hand, by what reproduces the file that there is."""
    known = read("finetune_visualbert/flickr")
    again = run_as_released(known)
    for name in known:
        if name.startswith(("out/", "final/")):
            np.testing.assert_allclose(again[name], known[name], rtol=1e-9, atol=1e-12, err_msg=name)
    derived = run_as_released(cut_phrases(known))
    assert not np.allclose(derived["out/loss_per_micro_step"], known["out/loss_per_micro_step"], rtol=1e-3)
    assert run_changed("finetune_visualbert/flickr", derived, tmp_path) == {}


def with_options(arrays: Arrays, **changes: Any) -> Arrays:
    return arrays | {"config": np.array(json.dumps({**json.loads(str(arrays["config"])), **changes}))}


def test_where_the_release_raised_ours_must_refuse(tmp_path: Path) -> None:
    """The first ViLBERT fails where annotated boxes do not fit; with room for all, nothing is refused."""
    arrays = read("finetune_vilbert/data_refer_first")
    most = json.loads(str(arrays["config"]))["max_region_num"]
    roomy = with_options(arrays, max_region_num={**most, "train_cut": most["train"]})
    assert set(run_changed("finetune_vilbert/data_refer_first", roomy, tmp_path)) == {"out/train_cut"}


@pytest.mark.parametrize("most", [3, 5, 8, 11, 16, 20])
def test_captions_of_entities_that_are_cut(most: int, tmp_path: Path) -> None:
    """The release keeps the first pieces and [SEP], `max_seq_length` of them; a phrase stands where it stood in the
    whole sentence, and nothing is left out. So the arrays of shorter rows follow from those of whole ones."""
    case = "finetune_visualbert/data_flickr"
    content = with_options(read(case), max_seq_length=most)
    lost = 0
    for name in [each for each in content if each.endswith(".bert_input_ids")]:
        item = name.removesuffix("bert_input_ids")
        ids = content[name]
        kept = np.append(ids[: most - 1], ids[-1]) if len(ids) > most else ids
        content[name], content[f"{item}bert_input_mask"] = kept, np.ones(len(kept), np.int64)
        content[f"{item}bert_input_type_ids"] = np.zeros(len(kept), np.int64)
        lost += int((content[f"{item}flickr_position"] >= len(kept) - 1).sum())
    assert run_changed(case, content, tmp_path) == {} and (lost > 0) == (most < 16)
    content["out/0.flickr_position"] = np.minimum(content["out/0.flickr_position"], most - 2)  # the last piece left
    assert set(run_changed(case, content, tmp_path)) == ({"out/0.flickr_position"} if most < 15 else set())


@pytest.mark.slow
def test_names_that_were_drawn_stand_in_the_texts_and_are_all_used(tmp_path: Path) -> None:
    case, name = "finetune_vilbert/data_vcr_first", "out/QA.names_drawn"
    arrays = read(case)
    drawn = json.loads(str(arrays[name]))

    def misses(names: list[str]) -> dict[str, str]:
        return run_changed(case, arrays | {name: np.array(json.dumps(names))}, tmp_path)

    assert set(misses(["blake", *drawn[1:]])) == {"out/QA.0.text"}
    assert set(misses([*drawn, "casey"])) == {name}
    assert any("ours need more" in note for note in misses(drawn[:-1]).values())


@pytest.mark.slow
def test_another_length_and_other_names_are_read_from_the_case(tmp_path: Path) -> None:
    """So that nothing of our copy is built in: each then differs from what the release made."""
    case = "finetune_vlbert/data_vcr"
    arrays = read(case)
    cycle = ["Riley", *json.loads(str(arrays["config"]))["names_cycle"][1:]]
    for changes, question in (({"seq_len": 63}, "out/Q2A.1.question"), ({"names_cycle": cycle}, "out/Q2A.0.question")):
        found = run_changed(case, with_options(arrays, **changes), tmp_path)
        assert question in found and "out/Q2A.0.masks" not in found
