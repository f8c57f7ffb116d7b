"""`roibeam conformance` on InterBERT: a case made for the test with other sizes and options, tampered with in every
array; masking by groups; and the true reference arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_cases import missed, run, two_stream_inputs, write
from harness.runner import run_conformance

from roibeam.model.common.transformer import computing_padding
from roibeam.model.interbert.checkpoint import config_from_official, state_to_official
from roibeam.model.interbert.model import InterBertForTasks
from roibeam.model.task_losses import binary_loss

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "interbert"

# Everything differs from the project's reference arrays: sizes, depths, activations, fusion, all heads in one file.
OPTIONS = {
    "vocab_size": 60,
    "hidden_size": 18,
    "num_hidden_layers": 1,
    "t_num_hidden_layers": 3,
    "v_num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 22,
    "hidden_act": "relu",
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "v_feature_size": 10,
    "v_target_size": 10,
    "v_hidden_size": 18,
    "v_num_attention_heads": 2,
    "v_intermediate_size": 20,
    "v_hidden_act": "swish",
    "bi_hidden_size": 12,
    "fusion_method": "sum",
    "predict_feature": True,
    "num_labels": 7,
}


def interbert_case() -> dict[str, np.ndarray]:
    """Arrays of pre-training and of tasks by the official names, computed by our model."""
    generator = torch.Generator().manual_seed(5)
    model = InterBertForTasks(config_from_official(OPTIONS)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * 0.3)
    batch, inputs = two_stream_inputs(generator, target_size=10, distributions=False)
    random_caption = inputs["in/next_sentence_label"]
    with computing_padding():  # as the release does
        output = model.encode(batch, with_attention=True)
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    pretraining = torch.stack(list(losses.values())).sum()
    retrieval = binary_loss(model.match_log_odds(output)[None], random_caption.argmin()[None]).mean
    choice = -model.score_pairs(output).log_softmax(dim=0)[1]
    (pretraining + retrieval + choice).backward()
    assert output.attention is not None and output.pooled_image is not None
    arrays = inputs | {
        "in/multimodal_mask": torch.cat([inputs["in/image_attention_mask"], inputs["in/attention_mask"]], dim=1),
        "in/retrieval_target": random_caption,
        "in/choice_target": torch.tensor([1]),
        "out/sequence_output_t": output.text_states,
        "out/pooled_output_v": output.pooled_image,
        "out/seq_relationship_score": model.logits(output).match,
        "out/vil_prediction": model.answers(output),
        "out/vision_logit": model.score_regions(batch, output)[..., None],
        "out/masked_lm_loss": losses["masked_words"],
        "out/masked_img_loss": losses["masked_regions"],
        "out/next_sentence_loss": losses["matching"],
        "out/total_loss": pretraining,
        "out/retrieval_loss": retrieval,
        "out/choice_loss": choice,
        "out/attention_single_stream.0": output.attention.joint[0],
        "out/grad_norm_total": torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm(),
    }
    arrays |= {f"param/{name}": tensor for name, tensor in state_to_official(model.state_dict()).items()}
    for official, gradient in (
        ("bert.encoder.layer.3.attention.output.LayerNorm.bias", model.interbert.text.layers[2].attention_norm.bias),
        ("bert.encoder.layer.0.attention.self.key.weight", model.interbert.joint.layers[0].attention.key.weight),
    ):
        assert gradient.grad is not None
        arrays[f"grad/{official}"] = gradient.grad[:4] if gradient.ndim > 1 else gradient.grad
    plain = {name: tensor.detach().numpy() for name, tensor in arrays.items()}
    return plain | {"config": np.array(json.dumps(OPTIONS))}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return interbert_case()


def test_a_case_of_other_sizes_passes_and_every_array_is_compared(
    arrays: dict[str, np.ndarray], tmp_path: Path, conformance: Any
) -> None:
    done = conformance(write(tmp_path / "altered", arrays))  # recognised by its files
    assert done.code == 0, done.out
    rows = {line.split()[1] for line in done.out.splitlines() if line.startswith("interbert/any_name ")}
    assert rows == {name for name in arrays if name.startswith(("out/", "grad/"))}


def test_every_tampered_array_is_a_miss(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    changed = {name: np.array(array) for name, array in arrays.items() if name.startswith(("out/", "grad/"))}
    for array in changed.values():
        array.reshape(-1)[np.abs(array).argmax()] *= 1.01
    assert set(missed(run(write(tmp_path / "interbert", arrays | changed)))) == set(changed)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"in/multimodal_mask": np.ones((2, 10), int)}, "must be the mask of the image, then that of the text"),
        ({"in/choice_target": np.zeros(3, int)}, "has 3 questions for 2 rows"),
        ({"in/image_feat": np.ones((2, 4, 11))}, "has shape (2, 4, 11), expected (any, any, 10)"),
        ({"param/bert.encoder.c_layer.0.x": np.ones(1)}, "is not one of InterBERT's release"),
        ({"extra/thing": np.ones(1)}, "unknown array"),
        ({"out/new_output": np.ones(1)}, "unknown output"),
        ({"config": np.array(json.dumps(OPTIONS | {"depth": 3}))}, "no option 'depth'"),
        ({"config": np.array(json.dumps(OPTIONS | {"num_hidden_layers": 5}))}, "has 4 layers of BERT, but 5 should"),
        ({"config": np.array(json.dumps(OPTIONS | {"num_hidden_layers": 10**6}))}, "is 1000000; expected 0 to"),
        ({"config": np.array(json.dumps(OPTIONS | {"v_hidden_size": 24}))}, "joint layers need one width"),
    ],
)
def test_what_is_wrong_with_a_case_is_one_line(
    changes: dict[str, np.ndarray], words: str, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    notes = list(missed(run(write(tmp_path / "interbert", arrays | changes))).values())
    assert len(notes) == 1 and words in notes[0] and "\n" not in notes[0]


@pytest.mark.parametrize("change", [{"fusion_method": "mul"}, {"num_hidden_layers": 2, "t_num_hidden_layers": 2}])
def test_the_model_s_own_options_are_used(
    change: dict[str, Any], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    config = {"config": np.array(json.dumps(OPTIONS | change))}
    assert len(missed(run(write(tmp_path / "interbert", arrays | config)))) >= 3


def test_masking_by_groups_is_compared(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 3], [50, 50, 60, 60]], np.float32)
    features = np.array([[1, 2], [3, 4], [0, 0], [0, 0]], np.float32)  # the third was zero before; one padding slot
    corners = np.concatenate([boxes / np.array([100, 80, 100, 80]), np.zeros((1, 4))]).astype(np.float32)
    case = {
        "config": np.array(json.dumps({"rule": "any", "threshold": 0.39})),
        "in/7.boxes_pixel": boxes,
        "in/7.image_loc": np.concatenate([corners, np.zeros((4, 1), np.float32)], axis=1),
        "in/7.width_height": np.array([100, 80], np.float32),
        "in/7.num_boxes": np.array(3),
        "in/7.anchors": np.array([0]),
        "in/7.features": features,
        # with a pixel more on each side 40 of 100 are shared
        "out/7.iou": np.array([[1, 0.4, 0], [0.4, 1, 0], [0, 0, 1]], np.float32),
        "out/7.image_label": np.array([1, 1, 1]),
        "out/7.masked_set": np.array([0, 1, 2]),
        "out/7.masked_features": np.zeros((4, 2), np.float32),
        "out/7.global_feature": np.zeros(2, np.float32),
    }
    assert not missed(run(write(tmp_path / "interbert", case)))
    for name in ("iou", "image_label", "masked_set", "masked_features", "global_feature"):
        changed = case[f"out/7.{name}"].copy()
        changed.reshape(-1)[-1] += 1
        assert set(missed(run(write(tmp_path / "interbert", case | {f"out/7.{name}": changed})))) == {f"out/7.{name}"}
    stricter = case | {"config": np.array(json.dumps({"rule": "any", "threshold": 0.41}))}
    assert set(missed(run(write(tmp_path / "interbert", stricter)))) == {
        f"out/7.{name}" for name in ("image_label", "masked_set", "masked_features", "global_feature")
    }
    other_image = case | {"in/7.width_height": np.array([50, 80], np.float32)}
    assert "is not the boxes in pixels" in missed(run(write(tmp_path / "interbert", other_image)))["any_name.npz"]


def test_the_reference_arrays_pass() -> None:
    results = list(run_conformance(GOLDENS))
    assert len(results) == 4
    assert {result.name: missed(result) for result in results if not result.passed} == {}
