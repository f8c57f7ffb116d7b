"""The arithmetic of VL-BERT against arrays made with the official code (goldens/vlbert/README.md, its tolerances)."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import name_from_official, state_from_official
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import VLBertImageElements, embed_coordinates
from roibeam.model.vlbert.model import VLBertForPreTraining

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vlbert"


def load(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files if key != "config_json"}


def build(golden, *, official_prefix=""):
    """The golden model, sizes from its config_json; `core` holds the inner module only, so its names lack a prefix."""
    model = VLBertForPreTraining(
        VLBertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            num_region_labels=30,
            max_position_embeddings=64,
            with_pooler=True,
            with_relationship_head=True,
        )
    )
    official = {
        official_prefix + key.removeprefix("param/"): value for key, value in golden.items() if key.startswith("param/")
    }
    state = state_from_official(official)
    missing, unexpected = model.load_state_dict(state, strict=False)
    # `core` starts from embedded regions, so it has no parameters of the part that embeds them.
    parts = ("vlbert.region_projection.", "vlbert.region_token.", "vlbert.masked_region_")
    assert not unexpected and all(name.startswith(parts) for name in missing) and bool(missing) == bool(official_prefix)
    return model.eval()


def pack(states, text_mask, element_mask):
    """Our padded rows in the release's layout: real text, real elements, [END], then padding."""
    keep = torch.cat([text_mask, element_mask, torch.ones(len(text_mask), 1, dtype=torch.bool)], dim=1)
    packed = torch.zeros_like(states)
    for row in range(len(states)):
        packed[row, : keep[row].sum()] = states[row, keep[row]]
    return packed


def record_states(model):
    """Hooks that fill a dict with the embedding and every layer's output."""
    seen = {}

    def keep(name):
        return lambda module, inputs, output: seen.__setitem__(name, output)

    model.vlbert.embeddings.register_forward_hook(keep("embedding_output"))
    for index, layer in enumerate(model.vlbert.encoder.layers):
        layer.register_forward_hook(keep(f"encoded_layer_{index}"))
    return seen


def assert_states_match(seen, golden, text_mask, element_mask):
    valid = golden["out/attention_mask"]
    assert len(seen) == 4
    for name, states in seen.items():
        # Layers give packed states: the release's rows have no gaps either.
        ours = states if states.ndim == 2 else pack(states, text_mask, element_mask)[:, : valid.shape[1]][valid]
        torch.testing.assert_close(ours, golden[f"out/{name}"][valid], rtol=0, atol=1e-4, msg=name)


def test_core():
    golden = load("core")
    model = build(golden, official_prefix="vlbert.")
    seen = record_states(model)
    text_mask, element_mask = golden["in/text_mask"], golden["in/object_mask"]
    visuals, tokens = golden["in/object_vl_embeddings"].split(64, dim=-1)
    with torch.no_grad():
        states = model.vlbert.embeddings(
            golden["in/text_input_ids"],
            golden["in/text_token_type_ids"],
            text_mask,
            golden["in/text_visual_embeddings"],
            tokens,
            visuals,
        )
        ones = torch.ones(3, 1, dtype=torch.bool)
        states = model.vlbert.encoder(states, torch.cat([text_mask, element_mask, ones], dim=1))
        text, elements = states[:, :9], states[:, 9:15]
        pooled = model.vlbert.pooler(states[:, 0])
        got = {
            "text_out": text[text_mask],
            "object_out": elements[element_mask],
            "pooled": pooled,
            "relationship_logits": model.relationship_head(pooled),
            "mlm_logits": model.masked_word_head(text, model.vlbert.embeddings.words.weight)[text_mask],
            "mvrc_logits": model.masked_region_head(elements)[element_mask],
        }
    assert_states_match(seen, golden, text_mask, element_mask)
    masks = {"text_out": text_mask, "mlm_logits": text_mask, "object_out": element_mask, "mvrc_logits": element_mask}
    for name, value in got.items():
        want = golden[f"out/{name}"]
        want = want[masks[name]] if name in masks else want
        torch.testing.assert_close(value, want, rtol=0, atol=1e-4, msg=name)


@pytest.fixture(scope="module")
def pretrain():
    golden = load("pretrain_prec")
    model = build(golden)
    real = golden["in/boxes"][..., 0] > -1.5
    text_mask = golden["in/text"] > 0
    elements = VLBertImageElements(
        features=golden["in/boxes"][..., 4:],
        boxes=golden["in/boxes"][..., :4],
        mask=real,
        masked=golden["in/mvrc_ops"] == 1,
    )
    targets = golden["in/mvrc_labels"][:, 1:]
    batch = VLBatch(
        text_ids=golden["in/text"],
        text_mask=text_mask,
        text_segments=torch.zeros_like(golden["in/text"]),
        region_features=elements.features[:, 1:],
        region_boxes=elements.boxes[:, 1:],
        region_mask=real[:, 1:],
        image_hw=golden["in/im_info"][:, :2].flip(-1),
        masked_regions=elements.masked[:, 1:],
        text_labels=golden["in/mlm_labels"].masked_fill(golden["in/mlm_labels"] == -1, IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=targets.sum(-1) > 0.9,
        match_labels=golden["in/relationship_label"],
    )
    seen = record_states(model)
    # The golden's whole-image box is rounded to bfloat16, so it is handed in and not made from the image size.
    output = model.vlbert.encode(batch, elements)
    return golden, model, batch, elements, output, seen


def test_pretrain_states_and_logits(pretrain):
    golden, model, batch, elements, output, seen = pretrain
    assert_states_match(seen, golden, batch.text_mask, elements.mask)
    with torch.no_grad():
        states = torch.cat([output.whole_image_state[:, None], output.region_states], dim=1)
        words = model.masked_word_head(output.text_states, model.vlbert.embeddings.words.weight)
        got = {
            "mlm_logits": (words[batch.text_mask], golden["out/mlm_logits"][batch.text_mask]),
            "mvrc_logits": (model.masked_region_head(states)[elements.mask], golden["out/mvrc_logits"][elements.mask]),
            "relationship_logits": (model.relationship_head(output.pooled), golden["out/relationship_logits"]),
        }
        coordinates = embed_coordinates(elements.boxes[:1, :4], batch.image_hw[:1], 2048)[0]
        got["coord_embed_row0_first4"] = (coordinates, golden["out/coord_embed_row0_first4"])
        hidden = torch.where(elements.masked[..., None], model.vlbert.masked_region_feature.weight, elements.features)
        visuals = model.vlbert.region_projection(hidden, elements.boxes, batch.image_hw)
        real = elements.mask[:, :7]
        got["obj_reps"] = (visuals[:, :7][real], golden["out/obj_reps"][real])
    for name, (value, want) in got.items():
        torch.testing.assert_close(value, want, rtol=0, atol=1e-4, msg=name)


def test_pretrain_losses_and_gradients(pretrain):
    golden, model, batch, _, output, _ = pretrain
    model.zero_grad()
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    total = sum(losses.values())
    names = {"masked_words": "mlm_loss", "masked_regions": "mvrc_loss", "matching": "relationship_loss"}
    for ours, official in names.items():
        torch.testing.assert_close(losses[ours], golden[f"out/{official}"], rtol=1e-5, atol=2e-5, msg=official)
    torch.testing.assert_close(total, golden["out/loss"], rtol=1e-5, atol=2e-5)
    total.backward(retain_graph=True)
    parameters = dict(model.named_parameters())
    checked = 0
    for key, want in golden.items():
        kind, _, official = key.partition("/")
        # Key biases cancel in the softmax: their gradient is rounding noise (README).
        if kind not in ("grad", "gradnorm") or official.endswith("attention.self.key.bias"):
            continue
        gradient = parameters[name_from_official(official)].grad
        if kind == "gradnorm":
            torch.testing.assert_close(gradient.norm(), want, rtol=1e-3, atol=1e-5, msg=key)
        else:
            step = math.ceil(gradient.numel() / 256)
            torch.testing.assert_close(
                gradient.flatten()[::step], want, rtol=0, atol=1e-3 * want.abs().max().item(), msg=key
            )
        checked += 1
    assert checked > 80
