"""Ways to run a model that must not change what it computes: packed, with activations computed again, in bfloat16."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch
from model_examples import EXAMPLES, MOSTLY_ONE_OF_EACH, build, in_dtype, make_full_batch, padded, tensors
from test_invariances import HALF_EMPTY, every_model, total_loss

from roibeam.model.common.transformer import (
    Attention,
    FeedForward,
    Packing,
    TransformerEncoder,
    TransformerLayer,
    computing_padding,
)
from roibeam.model.inputs import IGNORE_INDEX, VLBatch

RAGGED = {
    "ragged": lambda: make_full_batch(),
    "no region": lambda: make_full_batch(regions=(0, 4, 0)),
    "no padding": lambda: make_full_batch((6, 6, 6), (5, 5, 5)),
    "one row": lambda: make_full_batch((7,), (3,)),
}


def gradients_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def run(model, batch):
    """States of what is real, pooled vectors, losses and gradients, by name."""
    model.zero_grad()
    output = model.encode(batch)
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    sum(losses.values()).backward()
    masks = {"text_states": batch.text_mask, "region_states": batch.region_mask}
    found = {name: value[masks[name]] if name in masks else value for name, value in tensors(output).items()}
    return {name: value.detach() for name, value in (found | losses).items()} | gradients_of(model)


def assert_near(found, wanted, tolerance):
    """Relative to the largest number of each tensor."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        scale = max(1.0, want.abs().max().item() if want.numel() else 0.0)
        torch.testing.assert_close(found[name], want, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}")


def assert_packed_equals_padded(model, batch, tolerance):
    packed = run(model, batch)
    with computing_padding():
        wanted = run(model, batch)
    assert_near(packed, wanted, tolerance)


@pytest.mark.parametrize("name", MOSTLY_ONE_OF_EACH)
@pytest.mark.parametrize("kind", RAGGED)
def test_packed_equals_padded(name, kind):
    assert_packed_equals_padded(build(name).double(), in_dtype(RAGGED[kind](), torch.float64), 1e-12)


@every_model
def test_packed_equals_padded_in_float32(name):
    assert_packed_equals_padded(build(name), make_full_batch(), 1e-6)


@every_model
def test_padding_is_not_worked_on(name):
    """Attention, LayerNorm and linear layers of the encoder see as many positions as there are, and no more."""
    model, seen = build(name), []
    for module in model.modules():
        if isinstance(module, TransformerLayer | Attention):
            module.register_forward_hook(lambda _module, inputs, output: seen.append((len(inputs[0]), len(output))))
    lengths = []
    for batch in (make_full_batch(), padded(make_full_batch(), 6, 4)):
        with torch.no_grad():
            model.encode(batch)
        lengths.append(seen.copy())
        seen.clear()
    text, regions = make_full_batch().text_mask.sum().item(), make_full_batch().region_mask.sum().item()
    assert lengths[0] == lengths[1] and lengths[0]
    most = text + regions + 4 * len(batch.text_mask)  # whole image, [END], [SEP]
    assert all(length == out <= most for length, out in lengths[0])


@every_model
def test_wider_padding_changes_no_bit(name):
    batch = make_full_batch()
    # A sum over more zeros may be rounded in another way.
    batch = dataclasses.replace(batch, whole_image_features=batch.region_features.mean(dim=1))
    model, longer = build(name), padded(batch, 5, 3)
    with torch.no_grad():
        one, other = model.encode(batch), model.encode(longer)
    real, region = batch.text_mask, batch.region_mask
    assert torch.equal(one.text_states[real], other.text_states[:, : real.shape[1]][real])
    assert torch.equal(one.region_states[region], other.region_states[:, : region.shape[1]][region])
    if one.pooled is not None:
        assert torch.equal(one.pooled, other.pooled)


@every_model
@pytest.mark.parametrize("kind", ["ragged", "no region"])
def test_losses_are_those_of_all_states_though_few_are_read(name, kind):
    """A last layer computes what is predicted and the first element of each row; losses and gradients stay."""
    model, batch, worked_on = build(name).double(), in_dtype(RAGGED[kind](), torch.float64), []
    wanted = run(model, batch)
    for module in model.modules():
        if isinstance(module, FeedForward):
            module.register_forward_hook(lambda _module, inputs, _output: worked_on.append(len(inputs[0])))
    model.zero_grad()
    losses = {key: term.mean for key, term in model(batch).losses.items()}
    sum(losses.values()).backward()
    found = {key: value.detach() for key, value in losses.items()} | gradients_of(model)
    assert_near(found, {key: value for key, value in wanted.items() if key in found}, 1e-12)
    assert {key for key in wanted if "." in key} <= found.keys()  # all gradients
    read = batch.text_labels.ne(IGNORE_INDEX).sum() + batch.region_target_mask.sum() + 2 * len(batch.text_mask)
    assert worked_on[-1] <= read < max(worked_on)


@every_model
def test_activations_computed_again_change_no_bit(name):
    """Gradients too, with dropout; and the layers do run twice."""
    model, batch, runs = build(name).train(), make_full_batch(), []
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(lambda *_: runs.append(1))
    found = []
    for again in (False, True):
        if again:
            model.activation_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(3)
        loss = total_loss(model, batch)
        before = len(runs)
        loss.backward()
        assert len(runs) == before * (2 if again else 1) > 0
        found.append({"loss": loss.detach()} | gradients_of(model))
        runs.clear()
    for key, value in found[0].items():
        assert torch.equal(found[1][key], value), key
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        model.encode(batch, with_attention=True)
    assert model.eval().encode(batch, with_attention=True).attention is not None
    model.train().activation_checkpointing_disable()
    assert model.encode(batch, with_attention=True).attention is not None


@pytest.mark.parametrize("name", MOSTLY_ONE_OF_EACH)
@pytest.mark.parametrize(
    "make",
    [make_full_batch, HALF_EMPTY["no region"], HALF_EMPTY["nothing masked"]],
    ids=["all there", "no region", "nothing masked"],
)
def test_bfloat16(name, make):
    """Under autocast: losses near those of float32, computed in float32, and every gradient finite."""
    model, batch = build(name), make()
    with torch.no_grad():
        wanted = model(batch).losses
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(batch).losses
    sum(term.mean for term in losses.values()).backward()
    for key, term in losses.items():
        assert term.total.dtype == torch.float32 and term.count == wanted[key].count
        torch.testing.assert_close(term.mean.detach(), wanted[key].mean, rtol=0.05, atol=0.05)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every_model
def test_heads_see_only_what_is_predicted(name):
    """The vocabulary decoder and the heads of regions."""
    model, batch, seen = build(name), make_full_batch(), {}
    for head in ("masked_word_head", "masked_region_head", "region_class_head", "region_feature_head"):
        module = getattr(model, head, None)
        if module is not None:
            seen[head] = []
            module.register_forward_hook(lambda _m, inputs, _o, h=head: seen[h].append(inputs[0].shape[:-1].numel()))
    model(batch)
    most = {head: batch.region_target_mask.sum().item() for head in seen}
    most["masked_word_head"] = (batch.text_labels != IGNORE_INDEX).sum().item()
    assert len(seen) > int(EXAMPLES[name].masks_regions)
    for head, numbers in seen.items():
        assert len(numbers) == 1 and 0 < numbers[0] <= most[head], head


@pytest.mark.slow
def test_one_graph_with_padding():
    """Shapes that do not depend on the data: torch.compile sees the encoder in one piece."""
    encoder = TransformerEncoder([TransformerLayer(8, 2, 8, attention_dropout=0.0, dropout=0.0)]).eval()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    states = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))

    def padded_states(states, mask):
        return encoder(states, mask)

    with computing_padding(), torch.no_grad():
        compiled = torch.compile(padded_states, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(states, mask)[mask], encoder(states, mask)[mask])
    assert Packing(mask).places is not None


class _Exported(torch.nn.Module):
    """Takes tensors, as an exported program does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **fields):
        output = self.model.encode(VLBatch(**fields))
        return output.text_states, output.region_states


@pytest.mark.parametrize(
    "name", ["ImageBERT", *(pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES if name != "ImageBERT")]
)
def test_a_model_can_be_exported_where_padding_is_computed(name):
    """Elsewhere shapes depend on the data. The program has the model's numbers for other values, too."""
    model, batch = _Exported(build(name)).eval(), tensors(make_full_batch())
    with computing_padding(), torch.no_grad():
        program = torch.export.export(model, (), batch).module()
        other = batch | {"text_mask": batch["text_mask"].roll(1, 0), "region_features": batch["region_features"] + 1}
        for states, wanted in zip(program(**other), model(**other), strict=True):
            torch.testing.assert_close(states, wanted, rtol=0, atol=0)


def test_the_switch_is_for_its_block():
    mask = torch.tensor([[True, False]])
    for context, kept in ((computing_padding(), True), (nullcontext(), False)):
        with context:
            assert Packing(mask).keeps_padding == kept
