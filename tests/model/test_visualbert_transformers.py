"""VisualBERT equals transformers' VisualBertModel: a property over configurations and batches that Hypothesis draws."""

from dataclasses import dataclass

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vilbert_examples import randomised

from roibeam.model.inputs import VLBatch
from roibeam.model.visualbert.checkpoint import config_from_official, state_from_official
from roibeam.model.visualbert.model import VisualBertModel

VOCAB_SIZE = 40


@dataclass(frozen=True)
class Drawn:
    """Options of transformers' config, and the shape of a batch."""

    options: dict
    lengths: list  # real pieces of each row
    regions: list  # real regions of each row
    text_pad: int  # more padding than the longest row needs; it stands between text and regions
    region_pad: int
    num_aligned: int  # pieces a region may be aligned with; 0 = the batch has no alignment
    with_images: bool  # whether the batch says which image a region is from
    seed: int


@st.composite
def drawn(draw):
    heads = draw(st.integers(1, 4))
    segments = draw(st.integers(2, 4))
    options = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": heads * draw(st.integers(2, 6)),
        "visual_embedding_dim": draw(st.integers(3, 20)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.integers(5, 40)),
        "hidden_act": draw(st.sampled_from(["gelu", "relu"])),
        "max_position_embeddings": draw(st.integers(14, 20)),
        "type_vocab_size": segments,
        "pad_token_id": draw(st.sampled_from([0, 1, VOCAB_SIZE - 1])),
    }
    rows = draw(st.integers(1, 3))
    return Drawn(
        options,
        draw(st.lists(st.integers(1, 10), min_size=rows, max_size=rows)),
        draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows)),
        draw(st.integers(0, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


def make_batch(case):
    generator = torch.Generator().manual_seed(case.seed)
    rows, text, regions = len(case.lengths), max(case.lengths) + case.text_pad, max(case.regions) + case.region_pad
    text_mask = torch.arange(text) < torch.tensor(case.lengths)[:, None]
    region_mask = torch.arange(regions) < torch.tensor(case.regions)[:, None]
    segments = case.options["type_vocab_size"]
    aligned = torch.randint(-1, text, (rows, regions, max(case.num_aligned, 1)), generator=generator)
    images = torch.randint(segments - 1, (rows, regions), generator=generator)
    return VLBatch(
        text_ids=torch.randint(VOCAB_SIZE, (rows, text), generator=generator),
        text_mask=text_mask,
        text_segments=torch.randint(segments, (rows, text), generator=generator),
        # Ours does not read padded features; transformers' computes states of them.
        region_features=torch.randn(rows, regions, case.options["visual_embedding_dim"], generator=generator)
        * region_mask[..., None],
        region_boxes=torch.zeros(rows, regions, 4),
        region_mask=region_mask,
        image_hw=torch.ones(rows, 2),
        masked_regions=torch.zeros_like(region_mask),
        region_images=images if case.with_images else None,
        aligned_words=aligned if case.num_aligned else None,
    )


def compare(case, **overrides):
    """States and attention of real positions, and the pooled vector."""
    official = randomised(
        transformers.VisualBertModel(transformers.VisualBertConfig(**case.options, attn_implementation="eager")),
        case.seed,
    )
    model = VisualBertModel(config_from_official(case.options, **overrides)).eval()
    state = {f"visual_bert.{name}": tensor for name, tensor in official.state_dict().items()}
    model.load_state_dict({n.removeprefix("visualbert."): t for n, t in state_from_official(state).items()})
    batch = make_batch(case)
    # Without images, both take segment 1, transformers' default; ours counts images from there.
    images = None if batch.region_images is None else batch.region_images + model.config.first_region_segment
    with torch.no_grad():
        theirs = official(
            input_ids=batch.text_ids,
            attention_mask=batch.text_mask.long(),
            token_type_ids=batch.text_segments,
            visual_embeds=batch.region_features,
            visual_attention_mask=batch.region_mask.long(),
            visual_token_type_ids=images,
            image_text_alignment=batch.aligned_words,
            output_attentions=True,
        )
        ours, with_maps = model(batch), model(batch, with_attention=True)
    real = torch.cat([batch.text_mask, batch.region_mask], dim=1)
    states = torch.cat([ours.text_states, ours.region_states], dim=1)
    torch.testing.assert_close(states[real], theirs.last_hidden_state[real], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(ours.pooled, theirs.pooler_output, rtol=1e-4, atol=2e-5)
    maps = with_maps.attention.joint
    assert len(maps) == len(theirs.attentions) == case.options["num_hidden_layers"]
    for weights, wanted in zip(maps, theirs.attentions, strict=True):
        asked = real[:, None, :, None].expand_as(weights)
        torch.testing.assert_close(weights[asked], wanted[asked], rtol=1e-4, atol=2e-5)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=drawn())
def test_equal_to_transformers(case):
    compare(case)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=drawn())
def test_equal_to_transformers_on_many_more(case):
    compare(case)


@pytest.mark.parametrize("wrong", [{"alignment": "sum"}, {"hidden_activation": "relu"}])
def test_the_comparison_can_fail(wrong):
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 9, "max_position_embeddings": 14, "type_vocab_size": 2, "visual_embedding_dim": 5}
    case = Drawn(sizes, [3, 5], [2, 1], 2, 1, num_aligned=2, with_images=True, seed=0)
    compare(case)
    with pytest.raises(AssertionError, match="not close"):
        compare(case, **wrong)
