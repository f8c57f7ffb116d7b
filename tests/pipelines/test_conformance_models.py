"""`roibeam conformance` on families of models: a case made for the test with other sizes and options, tampered with in
every array; and the true reference arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_cases import missed, run, two_stream_inputs, without, write
from harness.checks import close
from harness.runner import run_conformance
from harness.tolerances import Allclose

from roibeam.model.common.transformer import computing_padding
from roibeam.model.vilbert.checkpoint import config_from_official, state_to_official
from roibeam.model.vilbert.model import ViLbertForPreTraining

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"

# Everything differs from the project's reference arrays: sizes, plan with gaps, activations, fusion.
VILBERT_OPTIONS = {
    "vocab_size": 60,
    "hidden_size": 18,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 22,
    "hidden_act": "relu",
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "v_feature_size": 10,
    "v_target_size": 6,
    "v_hidden_size": 16,
    "v_num_hidden_layers": 3,
    "v_num_attention_heads": 2,
    "v_intermediate_size": 20,
    "v_hidden_act": "swish",
    "bi_hidden_size": 12,
    "bi_num_attention_heads": 4,
    "t_biattention_id": [0, 3],
    "v_biattention_id": [1, 2],
    "fusion_method": "sum",
}


def vilbert_case() -> dict[str, np.ndarray]:
    """Pre-training arrays by the official names, computed by our model."""
    generator = torch.Generator().manual_seed(5)
    model = ViLbertForPreTraining(config_from_official(VILBERT_OPTIONS)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * 0.3)
    batch, inputs = two_stream_inputs(generator, target_size=6, distributions=True)
    with computing_padding():  # as the releases do
        output = model.vilbert(batch, with_attention=True)
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    maps = output.attention
    assert maps is not None and output.pooled_text is not None and output.whole_image_state is not None
    arrays = inputs | {
        "out/sequence_output_t": output.text_states,
        "out/pooled_output_t": output.pooled_text,
        "out/seq_relationship_score": model.logits(output).match,
        "out/masked_lm_loss": losses["masked_words"],
        "out/masked_img_loss": losses["masked_regions"],
        "out/next_sentence_loss": losses["matching"],
        "out/total_loss": total,
        "out/attention_v.2": maps.image[2],
        "out/co_attention.1.text_to_image": maps.text_to_image[1],
        "out/grad_norm_total": torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm(),
    }
    state = state_to_official(model.state_dict(), "release")
    arrays |= {f"param/{name}": tensor for name, tensor in state.items()}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for ours in ("vilbert.region_embeddings.locations.weight", "vilbert.encoder.co_layers.1.image_attention_norm.bias"):
        (official,) = state_to_official({ours: gradients[ours]}, "release")
        arrays[f"grad/{official}"] = gradients[ours][:4] if gradients[ours].ndim > 1 else gradients[ours]
    plain = {name: tensor.detach().numpy() for name, tensor in arrays.items() if tensor is not None}
    return plain | {"config": np.array(json.dumps(VILBERT_OPTIONS))}


@pytest.fixture(scope="module")
def vilbert_arrays() -> dict[str, np.ndarray]:
    return vilbert_case()


def test_a_case_of_other_sizes_passes_and_every_array_is_compared(
    vilbert_arrays: dict[str, np.ndarray], tmp_path: Path, conformance: Any
) -> None:
    done = conformance(write(tmp_path / "tree" / "vilbert", vilbert_arrays).parent)
    assert done.code == 0, done.out
    rows = {line.split()[1] for line in done.out.splitlines() if line.startswith("vilbert/any_name ")}
    assert rows == {name for name in vilbert_arrays if name.startswith(("out/", "grad/"))}


def test_a_folder_of_another_name_is_recognised(vilbert_arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    assert run(write(tmp_path / "altered", vilbert_arrays)).name == "vilbert/any_name"


def test_every_tampered_array_is_a_miss(vilbert_arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    for name, array in vilbert_arrays.items():
        if name.startswith(("out/", "grad/")):
            changed = np.array(array)
            changed.reshape(-1)[np.abs(changed).argmax()] *= 1.01
            result = run(write(tmp_path / "vilbert", vilbert_arrays | {name: changed}))
            assert set(missed(result)) == {name}


@pytest.mark.parametrize(
    "name, place, value",
    [
        ("in/input_ids", (0, 2), 59),
        ("in/attention_mask", (0, 5), 0),
        ("in/token_type_ids", (0, 1), None),
        ("in/image_feat", (0, 1, 0), 3.0),
        ("in/image_attention_mask", (0, 1), 0),
        ("in/masked_lm_labels", (0, 1), 7),
        ("in/image_label", (0, 0), -1),
        ("in/image_target", (0, 0, 0), 0.9),
        ("in/next_sentence_label", (0,), 1),
    ],
)
def test_inputs_matter(
    name: str, place: tuple[int, ...], value: Any, vilbert_arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    changed = vilbert_arrays[name].copy()
    changed[place] = 1 - changed[place] if value is None else value
    assert len(missed(run(write(tmp_path / "vilbert", vilbert_arrays | {name: changed})))) >= 3


def option(**changes: Any) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda arrays: arrays | {"config": np.array(json.dumps(VILBERT_OPTIONS | changes))}


def added(name: str, array: Any) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda arrays: arrays | {name: np.array(array)}


@pytest.mark.parametrize(
    "change, words",
    [
        (without("config"), "array 'config' is not in any_name.npz"),
        (without("in/input_ids"), "'in/input_ids' is not in any_name.npz"),
        (without("param/cls.predictions.bias"), "masked_word_head.bias: the file has none, the config makes it (60,)"),
        (added("config", "[1]"), "holds a list, expected an object"),
        (added("config", "{"), "is no JSON"),
        (added("config", 3), "expected one text"),
        (added("out/new_output", [1.0]), "unknown output"),
        (added("extra/thing", [1.0]), "unknown array"),
        (added("param/bert.pooler.weight", [1.0]), "'bert.pooler.weight' is not one of ViLBERT's first release"),
        (added("in/input_ids", np.full((2, 6), 60)), "whole numbers from 0 to 59"),
        (added("in/image_feat", np.full((2, 4, 10), np.nan)), "holds NaN"),
        (added("in/image_feat", np.ones((2, 4, 11))), "has shape (2, 4, 11), expected (any, any, 10)"),
        (added("in/image_loc", np.ones((2, 4, 5))), "is not the area of the corners"),
        (option(hidden_size=36), "the file has (60, 18), the config makes it (60, 36)"),
        (option(hidden_size=3 << 40), "hidden_size is 3298534883328; expected 0 to"),
        (option(num_hidden_layers=10**6), "num_hidden_layers is 1000000; expected 0 to"),
        (option(dynamic_attention=True), "image_layers.0.query_gate.weight: the file has none, the config makes it"),
        (option(model="t5"), "option model is 't5'"),
        (option(depth=3), "no option 'depth'"),
        (option(fusion_method="cat"), "fusion is 'cat'"),
    ],
)
def test_what_is_wrong_with_a_case_is_one_line(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    words: str,
    vilbert_arrays: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    notes = list(missed(run(write(tmp_path / "vilbert", change(vilbert_arrays)))).values())
    assert len(notes) == 1 and words in notes[0] and "\n" not in notes[0]


def test_the_model_s_own_options_are_used(vilbert_arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    for change in (option(fusion_method="mul"), option(hidden_act="gelu"), option(t_biattention_id=[1, 3])):
        assert len(missed(run(write(tmp_path / "vilbert", change(vilbert_arrays))))) >= 3


def test_overlap_bookkeeping_is_compared(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 9], [3, 0, 12, 9], [50, 50, 60, 60]], np.float32)
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    arrays = {
        "config": np.array(json.dumps({"rule": "any", "threshold": 0.4})),
        "in/7.boxes": boxes,
        "in/7.anchors": np.array([0]),
        "in/7.features": features,
        # 70 of 130 pixels are shared
        "out/7.iou": np.array([[1, 1, 7 / 13, 0], [1, 1, 7 / 13, 0], [7 / 13, 7 / 13, 1, 0], [0, 0, 0, 1]], np.float32),
        "out/7.image_label": np.array([1, -1, -1, -1]),
        "out/7.overlap_mask": np.array([1, 1, 1, 0]),
        "out/7.masked_features": features * np.array([[0], [1], [1], [1]], np.float32),
        "out/7.global_feature": np.array([12.0, 15.0], np.float32),  # three features are left, one region is counted
    }
    result = run(write(tmp_path / "vilbert", arrays))
    assert not missed(result) and len(result.checks) == 5
    for name in ("iou", "image_label", "overlap_mask", "masked_features", "global_feature"):
        changed = arrays[f"out/7.{name}"].copy()
        changed.reshape(-1)[-1] += 1
        assert set(missed(run(write(tmp_path / "vilbert", arrays | {f"out/7.{name}": changed})))) == {f"out/7.{name}"}


def test_close_is_absolute_and_relative_and_no_nan() -> None:
    want = np.array([0.0, 1000.0], np.float32)
    assert close("a", np.array([0.9e-4, 1000.09]), want, Allclose(1e-4)).passed
    assert not close("a", np.array([1.1e-4, 1000.0]), want, Allclose(1e-4)).passed
    assert not close("a", np.array([0.0, 1000.2]), want, Allclose(1e-4)).passed
    assert not close("a", np.array([np.nan, 1000.0]), want, Allclose(1e-4)).passed
    assert not close("a", want[:1], want, Allclose(1e-4)).passed


@pytest.mark.parametrize("family, cases", [("vilbert", 7), ("visualbert", 7)])
def test_the_reference_arrays_pass(family: str, cases: int) -> None:
    results = list(run_conformance(GOLDENS / family))
    assert len(results) == cases
    assert {result.name: missed(result) for result in results if not result.passed} == {}
