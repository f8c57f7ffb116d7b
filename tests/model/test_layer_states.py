"""States of every layer: those that layers made, in their order, and at no cost to what the model gives."""

import dataclasses

import pytest
import torch
from model_examples import EXAMPLES, build, make_full_batch, padded
from vilbert_examples import make_batch, randomised, tiny

from roibeam.model.common.transformer import computing_padding
from roibeam.model.vilbert.model import ViLbertForPreTraining

# Where the layers of each kind stand in a model's modules.
PLACES = {
    "layer": ("encoder.layers.",),
    "joint": ("joint.layers.",),
    "text": ("encoder.text_layers.", "text.layers."),
    "image": ("encoder.image_layers.", "image.layers."),
    "co": ("encoder.co_layers.",),
}


def made_by_layers(model, batch, call):
    """What `call` gives, and by the kind and number of each layer the packed states that it made of the streams."""
    found, hooks = {}, []
    for name, module in model.named_modules():
        for kind, places in PLACES.items():
            beginning, _, number = name.rpartition(".")
            if f"{beginning}.".endswith(places) and number.isdigit():
                take = lambda _, __, made, key=f"{kind} {number}": found.__setitem__(key, made)  # noqa: E731
                hooks.append(module.register_forward_hook(take))
    with torch.no_grad():
        output = call(model, batch)
    for hook in hooks:
        hook.remove()
    return output, found


def rows_of(made, side):
    """The packed states of one side; a co-attention makes both."""
    return made if isinstance(made, torch.Tensor) else made[side].states


def among(states, made):
    """Whether each row of states is one of those made, bit for bit."""
    return bool((states[:, None] == made[None]).all(dim=-1).any(dim=1).all())


@pytest.mark.parametrize("name", EXAMPLES)
def test_states_are_those_that_the_layers_made(name):
    model, batch = build(name), padded(make_full_batch(), 2, 1)
    output, made = made_by_layers(model, batch, lambda model, batch: model.encode(batch, with_states=True))
    states = output.layer_states
    for side, (names, found, mask, last) in enumerate(
        (
            (states.text_layers, states.text, batch.text_mask, output.text_states),
            (states.region_layers, states.regions, batch.region_mask, output.region_states),
        )
    ):
        assert names[0] == "embeddings" and len(set(names)) == len(names) == len(found) > 1
        assert all(each.shape == last.shape for each in found)
        assert torch.equal(found[-1], last)
        assert all((each[~mask] == 0).all() for each in found)
        for layer, each in list(zip(names, found, strict=True))[1:]:
            if layer in made:  # VisualBERT's late layer has a name of its own
                assert among(each[mask], rows_of(made[layer], side)), layer
            assert not torch.equal(each, found[0])
    heard = {*states.text_layers, *states.region_layers} - {"embeddings"}
    assert set(made) <= heard


@pytest.mark.parametrize("name", EXAMPLES)
def test_asking_for_states_changes_nothing(name):
    """And they are the same, up to rounding, where padding is computed."""
    model, batch = build(name), make_full_batch()
    with torch.no_grad():
        plain, output = model.encode(batch), model.encode(batch, with_states=True)
        with computing_padding():
            whole = model.encode(batch, with_states=True)
    assert plain.layer_states is None
    assert torch.equal(plain.text_states, output.text_states)
    assert torch.equal(plain.region_states, output.region_states)
    for ours, theirs, mask in (
        (output.layer_states.text, whole.layer_states.text, batch.text_mask),
        (output.layer_states.regions, whole.layer_states.regions, batch.region_mask),
    ):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one[mask], other[mask], rtol=1e-4, atol=1e-5)


def test_two_streams_name_the_layers_that_change_them():
    model, batch = build("ViLBERT"), make_full_batch()
    with torch.no_grad():
        states = model.encode(batch, with_states=True).layer_states
    kinds = {layer.split()[0] for layer in states.text_layers}, {layer.split()[0] for layer in states.region_layers}
    assert kinds == ({"embeddings", "text", "co"}, {"embeddings", "image", "co"})


def test_a_task_token_is_no_piece():
    """It stands among the pieces inside, and nowhere in the states."""
    model = randomised(ViLbertForPreTraining(tiny(num_task_tokens=3))).eval()
    batch = dataclasses.replace(make_batch(), task_ids=torch.tensor([1, 0, 2]))
    with torch.no_grad():
        output = model.encode(batch, with_states=True)
    assert output.task_state is not None
    assert all(torch.equal(each.ne(0).any(dim=-1), batch.text_mask) for each in output.layer_states.text)
    assert torch.equal(output.layer_states.text[-1], output.text_states)
