"""Items and runs of fine-tuning that no reference array has: derived by hand from those that there are, or by the
forward pass and the accidents of VisualBERT's release (goldens/finetune_visualbert/README.md)."""

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


def first_update(arrays: Arrays) -> Arrays:
    """What a case of this kind has of its first update, derived from its inputs. It moves nothing: the rate of a
    warm-up begins at 0."""
    config = json.loads(str(arrays["config"]))
    weights = {
        name.removeprefix("param/"): torch.from_numpy(value).double().requires_grad_(True)
        for name, value in arrays.items()
        if name.startswith("param/")
    }
    every = config["args"]["gradient_accumulation_steps"]
    order, told = arrays["out/batch_of_micro_step"][:every], dict[str, list[float]]()
    for number in order.tolist():
        start = f"in/{number}."
        batch = {n.removeprefix(start): torch.from_numpy(v) for n, v in arrays.items() if n.startswith(start)}
        batch = {n: v.double() if v.is_floating_point() else v for n, v in batch.items()}
        found = grounded(weights, batch, config["bert"])
        for name, value in found.items():
            told.setdefault("loss_per_micro_step" if name == "loss" else name, []).append(float(value.detach()))
        for weight in weights.values():
            weight.grad = None  # at the head of every micro-step: only the last one counts
        (found["loss"] / every).backward()
    gradients = [weights[name].grad for name in config["trainable"]]
    norms = np.array([[0.0 if each is None else float(each.norm())] for each in gradients])
    made = {f"out/{name}": np.array(values) for name, values in told.items()} | {"out/batch_of_micro_step": order}
    made |= {"out/param_grad_norm": norms, "out/param_change_norm": np.zeros_like(norms)}
    made |= {"out/grad_norm_per_update": np.sqrt((norms**2).sum(axis=0))}
    made["out/lr_per_update"] = np.zeros((1, len(config["groups"])))
    names = [name.removeprefix("final/") for name in arrays if name.startswith("final/")]
    return made | {f"final/{name}": weights[name].detach().numpy() for name in names}


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
    case = "finetune_visualbert/flickr"
    known = read(case)
    again = first_update(known)
    for name, value in again.items():
        if name.startswith("out/"):
            begun = known[name][tuple(map(slice, value.shape))]
            np.testing.assert_allclose(value, begun, rtol=1e-9, atol=1e-12, err_msg=name)
    run = json.loads(str(known["config"]))["args"] | {"gradient_accumulation_steps": 6}  # all batches in one update
    derived = with_options(cut_phrases(known), args=run, t_total=1, updates=1)
    derived |= first_update(derived)
    assert not np.allclose(derived["out/loss_per_micro_step"][:2], again["out/loss_per_micro_step"], rtol=1e-3)
    assert run_changed(case, derived, tmp_path) == {}


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
