"""Every model trained through the region encoder: where gradients go, what stays, what a masked region may show."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from end_to_end_examples import (
    BLANK,
    BOXES,
    CASES,
    RELEASE,
    SHOWN,
    SYSTEMS,
    WHOLE,
    awake,
    encoder,
    imagebert,
    inputs,
    joint_model,
    losses,
    score_arguments,
    vilbert,
    visualbert,
    vlbert,
)
from model_examples import in_dtype
from soak_share import some

from roibeam.extraction.photos.preprocessing import blank_regions
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.common.losses import cross_entropy
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.task_heads import (
    GroundingHead,
    GroundingHeadConfig,
    ImagePairHead,
    ImagePairHeadConfig,
    LabelHead,
    LabelHeadConfig,
    RegionHead,
    RegionHeadConfig,
)
from roibeam.model.task_losses import (
    answer_bce,
    answer_kl,
    class_bce,
    grounding_loss,
    region_bce,
    retrieval_losses,
    score_regression,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_slopes(joint, compute):
    """Gradients of every loss of `compute()` are slopes: central differences along a direction through all of res3."""
    found = compute()
    later = [*joint.region_encoder.backbone.res4.parameters(), *joint.region_encoder.roi_heads.parameters()]
    weights = list(joint.region_encoder.backbone.res3.parameters())
    generator = torch.Generator().manual_seed(7)
    directions = [torch.randn(w.shape, generator=generator, dtype=torch.float64) * w.std() for w in weights]
    slopes = {}
    for loss_name, loss in found.items():
        gradients = torch.autograd.grad(loss, [*weights, *later], retain_graph=True)
        assert all(gradient.any() for gradient in gradients), loss_name
        slopes[loss_name] = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=False))
    step, ends = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for weight, direction in zip(weights, directions, strict=True):
                weight.add_(sign * step * direction)
            ends.append(compute())
            for weight, direction in zip(weights, directions, strict=True):
                weight.sub_(sign * step * direction)
    for loss_name, slope in slopes.items():
        measured = (ends[0][loss_name] - ends[1][loss_name]).item() / (2 * step)
        assert abs(slope) > 1e-4, loss_name
        assert measured == pytest.approx(slope, rel=1e-4), loss_name


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_pre_training_loss_are_slopes(name):
    joint = joint_model(name).double()
    batch, images = (in_dtype(part, torch.float64) for part in inputs(joint))
    found = losses(joint, batch, images)
    assert set(found) >= {"masked_words"} and all(loss > 0 for loss in found.values())
    assert_slopes(joint, lambda: losses(joint, batch, images))


@pytest.mark.parametrize("name", SYSTEMS)
def test_gradients_of_every_task_loss_are_slopes(name):
    joint = joint_model(name).double()
    batch, images = (in_dtype(part, torch.float64) for part in inputs(joint))
    batch = dataclasses.replace(batch, phrase_positions=torch.tensor([[1, 2], [3, -1]]))
    config = joint.model.config
    answer = awake(LabelHead(LabelHeadConfig.for_model(config, num_classes=3))).double()
    pair = awake(ImagePairHead(ImagePairHeadConfig.for_model(config, num_classes=2)), seed=1).double()
    region = awake(RegionHead(RegionHeadConfig.for_model(config)), seed=2).double()
    grounding = awake(GroundingHead(GroundingHeadConfig.for_model(config)), seed=3).double()
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(2, 4, generator=generator).double()
    distributions = torch.softmax(torch.randn(2, 2, 4, generator=generator).double(), dim=-1)
    labels = torch.tensor([2, 0])

    def compute():
        filled = joint.with_features(batch, images)
        output = joint.model.encode(filled)
        logits = answer(filled, output)
        log_odds = joint.model.match_log_odds(output)
        terms = {
            "answer_bce": answer_bce(logits, scores[:, :3]),
            "answer_kl": answer_kl(logits, distributions[:, 0, :3]),
            "class_bce": class_bce(logits, labels),
            "choice": cross_entropy(logits[:, :1].reshape(1, 2), labels[1:]),
            "regression": score_regression(logits[:, :1], scores[:, 0]),
            "image_pair": cross_entropy(pair(filled, output), labels[1:]),
            "region_bce": region_bce(region(filled, output), scores, filled.region_mask, per="regions"),
            "grounding": grounding_loss(grounding(filled, output), distributions * (batch.region_mask[:, None])),
            **retrieval_losses(log_odds[None], torch.tensor([1]), ("binary", "multi_class", "triplet")),
        }
        return {loss_name: term.mean for loss_name, term in terms.items()}

    assert_slopes(joint, compute)


@pytest.mark.parametrize("name", some(SYSTEMS, ("vlbert", "vilbert", "visualbert")))
def test_ten_steps_move_what_is_trained_and_nothing_else(name):
    joint = joint_model(name).train()
    batch, images = inputs(joint)
    before = {name: tensor.clone() for name, tensor in joint.state_dict().items()}
    optimizer = torch.optim.AdamW(joint.parameters(), lr=1e-4, weight_decay=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        torch.stack(list(losses(joint, batch, images).values())).sum().backward()
        optimizer.step()
    encoder_tensors = 0
    for tensor_name, tensor in joint.state_dict().items():
        if not tensor_name.startswith("region_encoder."):
            continue
        encoder_tensors += 1
        frozen = ("region_encoder.backbone.stem", "region_encoder.backbone.res2")
        fixed = ".norm." in tensor_name or tensor_name.startswith(frozen)
        assert torch.equal(tensor, before[tensor_name]) == fixed, tensor_name
    assert encoder_tensors == len(joint.region_encoder.state_dict()) > 100


@pytest.mark.parametrize("name", CASES)
def test_stored_features_of_the_same_encoder_give_the_same(name):
    joint = joint_model(name)
    batch, images = inputs(joint)
    with torch.no_grad():
        filled = joint.with_features(batch, images)
        # As a store has them: of real regions only.
        stored = dataclasses.replace(
            batch,
            region_features=filled.region_features.masked_fill(~batch.region_mask[..., None], 0.0),
            whole_image_features=filled.whole_image_features,
            region_feature_targets=filled.region_feature_targets,
        )
        want, got = joint.encode(batch, images), joint.model.encode(stored)
        terms = joint.model(stored, *score_arguments(joint)).losses
        live = losses(joint, batch, images)
    for field in ("text_states", "region_states", "whole_image_state", "pooled"):
        ours, theirs = getattr(want, field), getattr(got, field)
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs), field
    assert {name: term.mean for name, term in terms.items()} == live


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1].masked_pixels == "blank"])
def test_what_stands_under_masked_boxes_reaches_nothing(name):
    """Pixels of the network's input; blanked the way the photos were, the outputs are equal bit for bit."""
    joint = joint_model(name)
    batch, images = inputs(joint)
    noisy = images.pixels.clone()
    for row, mask in enumerate(batch.masked_regions):
        for x1, y1, x2, y2 in images.boxes[row, mask].int().tolist():
            assert not images.pixels[row, :, y1 : y2 + 1, x1 : x2 + 1].any()
            noisy[row, :, y1 : y2 + 1, x1 : x2 + 1] = torch.randn(3, y2 + 1 - y1, x2 + 1 - x1) * 60
    boxes = [own[mask] for own, mask in zip(images.boxes, batch.masked_regions, strict=True)]
    blanked = torch.stack([blank_regions(each, own) for each, own in zip(noisy, boxes, strict=True)])
    with torch.no_grad():
        want = joint.encode(batch, images)
        got = joint.encode(batch, dataclasses.replace(images, pixels=blanked))
        leaked = joint.encode(batch, dataclasses.replace(images, pixels=noisy))
    for field in ("text_states", "region_states", "pooled"):
        assert torch.equal(getattr(got, field), getattr(want, field)), field
        assert not torch.equal(getattr(leaked, field), getattr(want, field)), field


REPLACED = (
    "vilbert-stored-way",
    "vlbert-learned",
    "vlbert-paper",
    "vilbert",
    "single-stream",
    "interbert",
    "imagebert",
)
SHOWN_AS_BLANK = ("vlbert", "vilbert-pixels", "single-stream-pixels", "interbert-pixels", "imagebert-pixels")


@pytest.mark.parametrize("name", [*REPLACED, *SHOWN_AS_BLANK])
def test_a_masked_region_s_feature_is_trained_where_the_model_reads_it(name):
    """Not where a vector stands for it: then no gradient goes to its own pixels, and no target is made of it. Where the
    model is shown what the encoder makes of a blank, it does."""
    joint = joint_model(name)
    batch, images = inputs(joint)
    filled = joint.with_features(batch, images)
    features = filled.region_features.detach().requires_grad_()
    losses = joint.model(dataclasses.replace(filled, region_features=features), *score_arguments(joint)).losses
    (sum(term.mean for term in losses.values()) if name in REPLACED else losses["masked_regions"].mean).backward()
    gradient = features.grad.abs().amax(dim=2)
    if name in REPLACED:
        assert not gradient[batch.masked_regions].any()
        assert (gradient[batch.region_mask & ~batch.masked_regions] > 0).all()
    else:
        assert (gradient[batch.masked_regions] > 0).all()


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("counts", [(4, 0), (0, 0), (1, 0)])
def test_half_empty_batches(name, counts):
    """Images without regions, nothing masked, nothing to predict: finite, and a step can be made."""
    joint = joint_model(name)
    boxes = [BOXES[0][:count] for count in counts]
    masked = [np.zeros(count, bool) for count in counts]
    batch, images = inputs(joint, boxes=boxes, masked=masked)
    batch = dataclasses.replace(
        batch,
        text_labels=torch.full_like(batch.text_labels, IGNORE_INDEX),
        region_target_mask=torch.zeros_like(batch.region_target_mask),
    )
    found = losses(joint, batch, images)
    assert found["masked_words"] == 0 and all(torch.isfinite(loss) for loss in found.values())
    sum(found.values()).backward()
    for parameter in joint.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    trained = [parameter for parameter in joint.region_encoder.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)  # data-parallel training waits for each of them


class TestFrozenTargets:
    @pytest.mark.parametrize("field", ["region_targets", "region_feature_targets"])
    def test_a_target_with_a_gradient_is_refused(self, field):
        joint = joint_model("vilbert-regression")
        batch, images = inputs(joint)
        moving = dataclasses.replace(batch, **{field: joint.with_features(batch, images).region_features})
        with pytest.raises(ValueError, match=f"{field} carries a gradient; targets are frozen"):
            joint(moving, images)

    def test_features_to_regress_beside_classes_are_the_stored_ones(self):
        joint = joint_model("imagebert")
        batch, images = inputs(joint)
        assert joint.with_features(batch, images).region_feature_targets is batch.region_features
        named = dataclasses.replace(batch, region_feature_targets=batch.region_features + 1)
        assert joint.with_features(named, images).region_feature_targets is named.region_feature_targets
        found, other = losses(joint, batch, images), losses(joint, named, images)
        assert {name for name in found if found[name] != other[name]} == {"masked_region_features"}
        none = dataclasses.replace(batch, region_features=batch.region_features[..., :0])
        with pytest.raises(ValueError, match="this model regresses features: hand over the stored ones"):
            joint(none, images)
        unscored = dataclasses.replace(none, region_targets=None, region_target_mask=None)
        assert joint.encode(unscored, images).text_states.shape == (2, 6, 16)

    def test_other_models_need_no_stored_features(self):
        joint = joint_model("vilbert")
        batch, images = inputs(joint)
        none = dataclasses.replace(batch, region_features=batch.region_features[..., :0])
        assert losses(joint, none, images) == losses(joint, batch, images)

    def test_stored_features_are_replaced_in_the_input_only(self):
        joint = joint_model("vilbert-regression")
        batch, images = inputs(joint)
        filled = joint.with_features(batch, images)
        assert filled.region_targets is batch.region_targets
        assert filled.region_features.requires_grad and not torch.equal(filled.region_features, batch.region_features)


@pytest.mark.parametrize(
    "make, choices, message",
    [
        (partial(vilbert, region_feature_size=64), BLANK, r"width 64 \(region_.*\), the region encoder makes 128"),
        (vlbert, WHOLE, r"'pixels' gives the model .* set masked_pixels='blank'"),
        # Shown pixels where no token tells what is masked.
        (partial(vlbert, masked_region_token=False), SHOWN, "'shown' is of a VL-BERT with masked_appearance 'pixels'"),
        (partial(vlbert, masked_appearance="learned"), SHOWN, "'shown' is of a VL-BERT with masked_appearance"),
        (vilbert, SHOWN, "'shown' is of a VL-BERT with masked_appearance 'pixels'"),
        (visualbert, RELEASE, "BertForPreTraining reads no feature of the whole image: set whole_image="),
        (imagebert, RELEASE, "BertForPreTraining reads no feature of the whole image: set whole_image="),
        (vlbert, BLANK, "needs a feature of the whole image: set whole_image='box'"),  # before the first step
    ],
)
def test_models_and_choices_that_do_not_go_together_are_refused(make, choices, message):
    with pytest.raises(ValueError, match=message):
        EndToEndModel(make(), encoder(), choices)


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="masked_pixels is 'black'; it must be one of 'blank', 'whole'"):
        EndToEndChoices(masked_pixels="black")


HIDDEN = torch.tensor([[True, False, False, False], [False, True, False, False]])  # as MASKED


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("vilbert", {"blanked_regions": HIDDEN[[0, 0]]}, "row 1 of sample 'b': region 1 is masked but not blank"),
        ("vilbert-stored-way", {"blanked_regions": HIDDEN}, "region 0 is blank though masked_pixels is 'whole'"),
        ("vilbert", {"boxes": torch.zeros(2, 3, 4)}, r"for 2 images of 4 .* boxes \(2, 4, 4\).*got .*\(2, 3, 4\)"),
        ("vlbert", {"whole_image_boxes": None}, r"whole_image_boxes must be \(2, 4\), got none"),
        ("vilbert", {"whole_image_boxes": torch.zeros(2, 4)}, r"whole_image_boxes must be left out, got \(2, 4\)"),
    ],
)
def test_photos_that_do_not_fit_the_batch_are_refused(name, changes, message):
    joint = joint_model(name)
    batch, images = inputs(joint)
    batch = dataclasses.replace(batch, sample_ids=("a", "b"))
    with pytest.raises(ValueError, match=message):
        joint(batch, dataclasses.replace(images, **changes))


class TestRowsOfTextAlone:
    """VL-BERT's second corpus: such rows have no photo, and none is made up for them."""

    @pytest.fixture
    def joint(self):
        return EndToEndModel(awake(vlbert(with_text_only=True)), encoder(), RELEASE)

    def test_photos_belong_to_the_other_rows(self, joint):
        batch, images = inputs(joint)
        order = torch.tensor([2, 0, 3, 1])  # rows 0 and 1 have photos; 2 and 3 are repeats of their text
        rows = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
        wide = {name: torch.cat([t, t])[order] for name, t in rows.items() if isinstance(t, torch.Tensor)}
        text_only = torch.tensor([True, False, True, False])
        wide["region_mask"] &= ~text_only[:, None]
        mixed = dataclasses.replace(batch, text_only=text_only, **wide)
        filled = joint.with_features(mixed, images)
        plain = joint.with_features(batch, images)
        assert torch.equal(filled.region_features[[1, 3]], plain.region_features)
        assert torch.equal(filled.whole_image_features[[1, 3]], plain.whole_image_features)
        assert not filled.region_features[[0, 2]].any() and not filled.whole_image_features[[0, 2]].any()
        found = losses(joint, mixed, images)
        assert found["text_only_words"] > 0
        shown = dataclasses.replace(images, blanked_regions=torch.zeros_like(images.blanked_regions))
        with pytest.raises(ValueError, match="row 1: region 0 is masked but not blank"):
            joint(mixed, shown)

    def test_a_batch_without_any_photo(self, joint):
        batch, images = inputs(joint)
        no_regions = torch.zeros_like(batch.region_mask)
        alone = dataclasses.replace(batch, text_only=torch.ones(2, dtype=torch.bool), region_mask=no_regions)
        nothing = ImageBatch(**{name: value[:0] for name, value in vars(images).items() if value is not None})
        found = losses(joint, alone, nothing)
        found["text_only_words"].backward()
        trained = [parameter for parameter in joint.region_encoder.parameters() if parameter.requires_grad]
        assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)


def test_instance_masks_weigh_the_cells_of_regions_and_not_of_the_whole_image():
    joint = joint_model("vlbert")
    batch, images = inputs(joint)
    ones = torch.ones(2, 4, 5, 5)
    plain = joint.with_features(batch, images)
    weighed = joint.with_features(batch, dataclasses.replace(images, cell_weights=ones / 2))
    torch.testing.assert_close(weighed.region_features, plain.region_features / 2)
    assert torch.equal(weighed.whole_image_features, plain.whole_image_features)


def test_batches_move_to_a_device_as_a_whole():
    joint = joint_model("vlbert")
    _, images = inputs(joint)
    moved = images.to("meta")
    assert {tensor.device.type for tensor in vars(moved).values() if tensor is not None} == {"meta"}
    assert inputs(joint_model("vilbert"))[1].to("cpu").whole_image_boxes is None
