"""`roibeam conformance` on VL-BERT: cases made for the test with other sizes and options, from stored features and from
pixels, tampered with in every array; and the true reference arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_cases import Arrays, missed, run, without, write
from harness.runner import run_conformance
from torch import Tensor, nn

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.weights.families import family_names
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import TABLES, config_from_official, state_to_official
from roibeam.model.vlbert.embeddings import VLBertImageElements
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vlbert"

# Everything differs from the project's reference arrays: sizes, activation, scales instead of LayerNorms.
VLBERT = {
    "vocab_size": 150,
    "hidden_size": 24,
    "visual_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_act": "relu",
    "max_position_embeddings": 16,
    "type_vocab_size": 4,
    "visual_region_classes": 5,
    "visual_ln": False,
    "with_pooler": True,
    "position_padding_idx": -1,
}
TOKENS = {"[PAD]": 0, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}


def options(name: str, network: dict[str, Any], vlbert: dict[str, Any] | None = None) -> np.ndarray:
    return np.array(
        json.dumps({"NETWORK": network, "VLBERT": VLBERT | (vlbert or {}), "class": name, "token_ids": TOKENS})
    )


def draw(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            centre = 1.0 if name.endswith(("norm.weight", "scale")) else 0.0
            scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * scale)


def packed(states: Tensor, keep: Tensor) -> Tensor:
    length = int(keep.sum(1).max())
    rows = states.new_zeros(len(states), length, states.shape[-1])
    for row, kept in enumerate(keep):
        rows[row, : kept.sum()] = states[row, kept]
    return rows


def gradient_arrays(parts: dict[str, tuple[nn.Module, Callable[[str], str]]]) -> dict[str, Tensor]:
    """Of modules by their official names: slices of every third, norms of all."""
    arrays: dict[str, Tensor] = {}
    for module, rename in parts.values():
        for number, (name, parameter) in enumerate(module.named_parameters()):
            if parameter.grad is None:
                continue
            official = rename(name)
            arrays[f"gradnorm/{official}"] = parameter.grad.norm()
            if number % 3 == 0 and not official.endswith("self.key.bias"):
                step = -(-parameter.grad.numel() // 256)
                arrays[f"grad/{official}"] = parameter.grad.flatten()[::step]
    return arrays


def plain(arrays: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in arrays.items()}


def multitask_case() -> Arrays:
    """Two images and one row of text alone, on stored features of width 7."""
    network = {"IMAGE_FEAT_PRECOMPUTED": True, "IMAGE_FINAL_DIM": 24, "WITH_REL_LOSS": True}
    generator = torch.Generator().manual_seed(2)
    config = config_from_official(network, VLBERT, "pretrain-multitask", region_feature_size=7)
    model = VLBertForPreTraining(config).eval()
    draw(model, generator)
    boxes = torch.full((2, 4, 11), -2.0)
    for row, count in enumerate((4, 2)):
        corner = torch.rand(count, 2, generator=generator) * 50
        boxes[row, :count, :4] = torch.cat([corner, corner + 30], dim=1)
        boxes[row, :count, 4:] = torch.randn(count, 7, generator=generator)
    text = torch.tensor([[101, 5, 103, 7, 102], [101, 9, 102, 0, 0]])
    aux = torch.tensor([[4, 103, 6, 8, 3, 11, 2]])
    labels, aux_labels = torch.full_like(text, -1), torch.full_like(aux, -1)
    labels[0, 2], labels[1, 1], aux_labels[0, 1] = 6, 9, 5
    ops = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])
    targets = torch.zeros(2, 4, 5)
    targets[0, 1:3] = torch.softmax(torch.randn(2, 5, generator=generator), dim=-1)
    hw = torch.tensor([[80.0, 120.0], [90.0, 100.0]])
    relation = torch.tensor([1, 0])

    real = boxes[..., 0] > -1.5
    elements = VLBertImageElements(boxes[..., 4:], boxes[..., :4], real, ops == 1)
    elements = VLBertImageElements(*(torch.cat([part, torch.zeros_like(part[:1])]) for part in elements))
    ids = torch.cat([torch.nn.functional.pad(text, (0, 2)), aux])
    every = torch.cat([torch.nn.functional.pad(labels, (0, 2), value=-1), aux_labels])
    wanted = torch.cat([targets, torch.zeros(1, 4, 5)])[:, 1:]
    batch = VLBatch(
        text_ids=ids,
        text_mask=ids > 0,
        text_segments=torch.zeros_like(ids),
        region_features=elements.features[:, 1:],
        region_boxes=elements.boxes[:, 1:],
        region_mask=elements.mask[:, 1:],
        image_hw=torch.cat([hw, torch.ones(1, 2)]),
        masked_regions=elements.masked[:, 1:],
        whole_image_features=elements.features[:, 0],
        text_labels=every.masked_fill(every == -1, IGNORE_INDEX),
        region_targets=wanted,
        region_target_mask=wanted.sum(-1) > 0.5,
        match_labels=torch.tensor([1, 0, IGNORE_INDEX]),
        text_only=torch.tensor([False, False, True]),
    )
    seen: list[Tensor] = []
    model.vlbert.embeddings.register_forward_hook(lambda _m, _i, output: seen.append(output))
    output = model.vlbert.encode(batch, elements)
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    keep = torch.cat([ids > 0, elements.mask, torch.ones(3, 1, dtype=torch.bool)], dim=1)
    words = model.word_logits(output.text_states)
    assert output.whole_image_state is not None and model.relationship_head is not None
    states = torch.cat([output.whole_image_state[:, None], output.region_states], dim=1)
    regions = model.region_logits(states)
    assert regions is not None
    arrays = {
        "in/boxes": boxes,
        "in/im_info": torch.cat([hw.flip(-1), torch.ones(2, 2)], dim=1),
        "in/text": text,
        "in/relationship_label": relation,
        "in/mlm_labels": labels,
        "in/mvrc_ops": ops,
        "in/mvrc_labels": targets,
        "in/aux_text": aux,
        "in/aux_mlm_labels": aux_labels,
        "out/embedding_output": packed(seen[0], keep),
        "out/attention_mask": torch.arange(int(keep.sum(1).max())) < keep.sum(1)[:, None],
        "out/mlm_logits_wvc": words[:2],
        "out/mlm_logits_aux": words[2:],
        "out/mvrc_logits": regions[:2],
        "out/relationship_logits": model.relationship_head(output.pooled)[:2],
        "out/mlm_loss_wvc": losses["masked_words"],
        "out/mlm_loss_aux": losses["text_only_words"],
        "out/mvrc_loss": losses["masked_regions"],
        "out/relationship_loss": losses["matching"],
        "out/loss": total,
    }
    arrays |= {f"param/{name}": t for name, t in state_to_official(model.state_dict()).items()}
    arrays |= gradient_arrays({"model": (model, TABLES["pretrain"].official)})
    return plain(arrays) | {"config_json": options("ResNetVLBERTForPretrainingMultitask", network)}


def referring_case() -> Arrays:
    """Two images through a small network whose last stage halves the map, with a visual feature of its own width."""
    network = {
        "IMAGE_FEAT_PRECOMPUTED": False,
        "IMAGE_FINAL_DIM": 10,
        "IMAGE_C5_DILATED": False,
        "IMAGE_STRIDE_IN_1x1": False,
        "IMAGE_FROZEN_BACKBONE_STAGES": [1, 2, 3],
    }
    sizes = {"visual_size": 10, "visual_ln": True, "hidden_act": "gelu", "with_pooler": False}
    generator = torch.Generator().manual_seed(4)
    conventions = CONVENTIONS["vlbert-e2e"].__class__(
        **(vars(CONVENTIONS["vlbert-e2e"]) | {"stride_conv": "3x3", "res5_stride": 2, "res5_dilation": 1})
    )
    encoder = RegionEncoder(DetectorConfig(depth=50, base_channels=2), conventions, frozen_stages=(1, 2, 3)).eval()
    draw(encoder, generator)
    config = config_from_official(network, VLBERT | sizes, "refcoco", region_feature_size=encoder.feature_dim)
    model = VLBertForReferring(config).eval()
    draw(model, generator)
    image = torch.randn(2, 3, 40, 56, generator=generator) * 20
    boxes = torch.full((2, 3, 4), -2.0)
    boxes[0] = torch.tensor([[0.0, 0, 55, 39], [3, 4, 30, 30], [4, 4, 31, 28]])
    boxes[1, :2] = torch.tensor([[0.0, 0, 50, 39], [20, 10, 44, 33]])
    real = boxes[..., 0] > -1.5
    features = encoder(image, boxes, real)
    elements = VLBertImageElements(features, boxes, real, torch.zeros_like(real))
    expression = torch.tensor([[12, 13, 14], [15, 0, 0]])
    text = torch.tensor([[101, 12, 13, 14, 102], [101, 15, 102, 0, 0]])
    info = torch.tensor([[56.0, 40.0, 2.0, 1.6], [51.0, 40.0, 1.5, 1.0]])
    batch = VLBatch(
        text_ids=text,
        text_mask=text > 0,
        text_segments=torch.zeros_like(text),
        region_features=features[:, 1:],
        region_boxes=boxes[:, 1:],
        region_mask=real[:, 1:],
        image_hw=info[:, :2].flip(-1),
        masked_regions=torch.zeros_like(real[:, 1:]),
        whole_image_features=features[:, 0],
    )
    output = model.vlbert.encode(batch, elements)
    scores = model.score_regions(batch, output)
    labels = torch.tensor([[0.0, 1, 1], [0, 1, -1]])
    loss = model.loss(batch, scores, labels).mean
    loss.backward()
    best = scores.argmax(dim=1)
    arrays = {
        "in/image": image,
        "in/boxes": boxes,
        "in/im_info": info,
        "in/expression": expression,
        "in/label": labels,
        "in/gt_box": torch.tensor([[3.0, 4, 30, 29], [20, 10, 44, 33]]),
        "out/label_logits": scores,
        "out/pred_boxes": boxes[torch.arange(2), best] / info[:, 2:].repeat(1, 2),
        "out/cls_loss": loss,
        "out/loss": loss,
    }
    arrays |= {f"param/{name}": t for name, t in state_to_official(model.state_dict(), "refcoco").items()}
    names = {ours: f"image_feature_extractor.{n}" for ours, n in family_names("vlbert-checkpoint").items()}
    arrays |= {f"param/{names[name]}": tensor for name, tensor in encoder.state_dict().items()}
    arrays |= gradient_arrays({"model": (model, TABLES["refcoco"].official), "encoder": (encoder, names.__getitem__)})
    return plain(arrays) | {"config_json": options("refcoco ResNetVLBERT", network, sizes)}


@pytest.fixture(scope="module", params=[multitask_case, referring_case], ids=["multitask", "referring"])
def arrays(request: pytest.FixtureRequest) -> Arrays:
    torch.set_num_threads(1)
    return request.param()


@pytest.fixture(scope="module")
def multitask() -> Arrays:
    return multitask_case()


def test_a_case_of_other_sizes_passes_and_every_array_is_compared(arrays: Arrays, tmp_path: Path) -> None:
    result = run(write(tmp_path / "altered", arrays))
    assert result.name == "vlbert/any_name" and missed(result) == {}
    compared = {check.array for check in result.checks}
    noise = {name for name in arrays if name.endswith("self.key.bias")}  # the README says to ignore them
    assert {name for name in arrays if name.startswith(("out/", "grad"))} - noise <= compared


def test_every_tampered_array_is_a_miss(arrays: Arrays, tmp_path: Path) -> None:
    names = {name for name in arrays if name.startswith(("out/", "grad")) and not name.endswith("self.key.bias")}
    changed = {name: np.array(arrays[name]) for name in names}
    for name, array in changed.items():
        # Label logits hold -10000 at padding, which means nothing.
        place = 0 if array.dtype == bool or name == "out/label_logits" else int(np.abs(array).argmax())
        array.reshape(-1)[place] = False if array.dtype == bool else array.reshape(-1)[place] * 1.01 + 1e-3
    assert set(missed(run(write(tmp_path / "vlbert", arrays | changed)))) == names


@pytest.mark.parametrize(
    "name, place, value",
    [
        ("in/boxes", (0, 1, 0), 9.0),
        ("in/boxes", (0, 2, 6), 3.0),
        ("in/im_info", (0, 0), 99.0),
        ("in/text", (0, 1), 77),
        ("in/mlm_labels", (0, 2), 8),
        ("in/mvrc_ops", (0, 2), 1),
        ("in/mvrc_labels", (0, 1), [1, 0, 0, 0, 0]),
        ("in/aux_text", (0, 3), 77),
        ("in/aux_mlm_labels", (0, 1), 8),
        ("in/relationship_label", (0,), 0),
    ],
)
def test_inputs_matter(name: str, place: tuple[int, ...], value: Any, multitask: Arrays, tmp_path: Path) -> None:
    changed = multitask[name].copy()
    changed[place] = value
    assert len(missed(run(write(tmp_path / "vlbert", multitask | {name: changed})))) >= 3


def option(**changes: Any) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        config = json.loads(str(arrays["config_json"]))
        for name, value in changes.items():
            for group in (config["NETWORK"], config["VLBERT"]):
                if name in group or group is config["NETWORK"]:
                    group[name] = value
        return arrays | {"config_json": np.array(json.dumps(config))}

    return change


def top(**changes: Any) -> Callable[[Arrays], Arrays]:
    return lambda arrays: (
        arrays | {"config_json": np.array(json.dumps(json.loads(str(arrays["config_json"])) | changes))}
    )


def added(name: str, array: Any) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: np.array(array)}


@pytest.mark.parametrize(
    "change, words",
    [
        (without("config_json"), "array 'config_json' is not in any_name.npz"),
        (without("in/text"), "'in/text' is not in any_name.npz"),
        (without("param/vlbert.end_embedding.weight"), "vlbert.embeddings.end.weight: the file has none"),
        (added("out/new_output", [1.0]), "unknown array"),
        (added("in/more", [1.0]), "unknown array"),
        (added("param/vlbert.rotary", [1.0]), "'vlbert.rotary' is not one of VL-BERT"),
        (added("in/text", np.full((2, 5), 150)), "whole numbers from 0 to 149"),
        (added("in/boxes", np.full((2, 4, 11), -2.0)), "must hold the whole image first"),
        (added("in/boxes", np.zeros((2, 4, 10))), "has features of width 6, not 7"),
        (added("in/im_info", np.zeros((2, 4))), "must hold widths and heights"),
        (added("gradnorm/vlbert.pooler.dense.rotary", 1.0), "no gradient of ours reaches this parameter"),
        (option(IMAGE_SEMANTIC=True), "IMAGE_SEMANTIC True is not computed here"),
        (option(NEW_SWITCH=True), "no option 'NEW_SWITCH'"),
        (top(**{"class": "GPT"}), "class is 'GPT'; known are"),
        (top(surprise=1), "unknown options surprise"),
        (top(VLBERT=[1]), "NETWORK and VLBERT must be objects"),
        (top(VLBERT=VLBERT | {"hidden_size": 1 << 40}), "hidden_size is 1099511627776; expected 0 to"),
        (top(VLBERT=VLBERT | {"intermediate_size": 22}), "the config makes it (22, 24)"),
        (top(weights_spec={"a": {"dist": "normal"}}), "weights_spec of 'a' is no recipe"),
    ],
)
def test_what_is_wrong_with_a_case_is_one_line(
    change: Callable[[Arrays], Arrays], words: str, multitask: Arrays, tmp_path: Path
) -> None:
    notes = list(missed(run(write(tmp_path / "vlbert", change(multitask)))).values())
    assert len(notes) == 1 and words in notes[0] and "\n" not in notes[0]


def test_a_recipe_must_give_the_promised_numbers(multitask: Arrays, tmp_path: Path) -> None:
    key = "vlbert.end_embedding.weight"
    spec = {"weights_spec": {key: {"dist": "uniform", "offset": 0.0, "scale": 0.0, "shape": [1, 24]}}}
    arrays = without(f"param/{key}")(multitask)
    for promise, words in ((0.0, "the file has"), (1.0, "gives other numbers than weights_check says")):
        notes = missed(run(write(tmp_path / "vlbert", top(**spec, weights_check={key: [promise, 0.0]})(arrays))))
        assert (words in " ".join(notes.values())) == (promise == 1.0)
    huge = {"weights_spec": {key: {"dist": "normal", "offset": 0, "scale": 1, "shape": [1 << 40]}}}
    notes = missed(run(write(tmp_path / "vlbert", top(**huge, weights_check={key: [0.0, 0.0]})(arrays))))
    assert "asks for 'normal' numbers of shape" in next(iter(notes.values()))


CASES = [
    "core",
    "dataset_item",
    "optim_and_losses",
    "pretrain_e2e_multitask_feature",
    "pretrain_e2e_narrow",
    pytest.param("pretrain_e2e_res101", marks=pytest.mark.slow),
    "pretrain_prec",
    "pretrain_prec_multitask",
    "refcoco",
    "vcr",
    "vqa",
]


@pytest.mark.parametrize("case", CASES)
def test_the_reference_arrays_pass(case: str) -> None:
    torch.set_num_threads(1)
    (result,) = run_conformance(GOLDENS, only=f"vlbert/{case}")
    assert missed(result) == {} and result.passed


def test_all_reference_files_are_known() -> None:
    from harness.runner import plan_cases

    assert all(case.case is not None for case in plan_cases(GOLDENS))


@pytest.mark.parametrize("case", ["dataset_item", "optim_and_losses"])
def test_every_tampered_array_of_the_data_is_a_miss(case: str, tmp_path: Path) -> None:
    with np.load(GOLDENS / f"{case}.npz") as file:
        arrays = dict(file)
    for name, array in arrays.items():
        if name.startswith("out/"):
            changed = array.copy()
            place = np.unravel_index(np.abs(array).argmax(), array.shape)
            changed[place] = changed[place] + 1
            # Which regions were masked is what the case says was drawn: another mask is another sample.
            found = missed(run(write(tmp_path / "vlbert", arrays | {name: changed})))
            assert name in found or name.endswith("_mvrc_ops"), name
