"""Every choice of VL-BERT's config: what it changes, by hand; how a new model starts. That padding, neighbours and
files change nothing is in test_invariances.py."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from vlbert_examples import FEATURES, make_batch, make_model

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.config import VLBertConfig, vlbert_base, vlbert_config, vlbert_small, vlbert_task_config
from roibeam.model.vlbert.embeddings import (
    average_visible_regions,
    elements_of_pieces,
    embed_coordinates,
    image_elements,
)
from roibeam.model.vlbert.model import VLBertForPreTraining, mean_over_rows


def words(rows, regions, *pairs):
    """`aligned_words` with the pairs (row, region, piece)."""
    aligned = torch.full((rows, regions, 2), -1)
    for row, region, piece in pairs:
        place = int((aligned[row, region] >= 0).sum())
        aligned[row, region, place] = piece
    return aligned


# --- what is embedded ---


def test_whole_image_count():
    features = torch.ones(1, 4, 2)
    mask, masked = torch.tensor([[True, True, True, False]]), torch.tensor([[True, False, False, False]])
    assert average_visible_regions(features, mask, masked, 0.0).tolist() == [[1.0, 1.0]]
    assert average_visible_regions(features, mask, masked, 2.0).tolist() == [[0.5, 0.5]]
    assert average_visible_regions(features, ~mask & mask, masked, 0.0).tolist() == [[0.0, 0.0]]
    batch = make_batch(regions=(4, 5, 0), whole_image_features=None)
    elements = image_elements(batch, 0.0)
    assert elements.boxes[:, 0].tolist() == [[0, 0, 199, 149]] * 3
    assert elements.mask[:, 0].all() and not elements.masked[:, 0].any()
    torch.testing.assert_close(elements.features[0, 0], batch.region_features[0, 1:4].mean(dim=0))
    assert elements.features[2, 0].abs().max() == 0  # an image without regions
    given = torch.ones(3, FEATURES)
    assert torch.equal(image_elements(dataclasses.replace(batch, whole_image_features=given)).features[:, 0], given)


def test_float64_goes_all_the_way():
    """Boxes, and whole numbers beside an epsilon, which torch adds in float32 unless told otherwise."""
    boxes, image_hw = torch.tensor([[[20.0, 30.0, 61.0, 90.0]]]).double(), torch.tensor([[101.0, 203.0]]).double()
    got = embed_coordinates(boxes, image_hw, 16, "corners").view(4, 4)
    angles = boxes[0, 0] / torch.tensor([203.0, 101.0, 203.0, 101.0]).double() * 100
    angles = angles[:, None] / torch.tensor([1.0, 1000.0]).double().sqrt()
    torch.testing.assert_close(got, torch.cat([angles.sin(), angles.cos()], dim=1), rtol=0, atol=1e-14)
    assert embed_coordinates(boxes.float(), image_hw.float(), 16).dtype == torch.float32
    rows = torch.tensor([[True, True, True]])
    mean = average_visible_regions(torch.ones(1, 3, 1).double(), rows, ~rows, 1e-5)
    assert mean.item() == pytest.approx(3 / (3 + 1e-5), abs=1e-15)
    losses = mean_over_rows(torch.ones(3).double(), torch.tensor([[True, True], [True, False], [False, False]]))
    assert losses.mean.item() == pytest.approx((2 / 2.0001 + 1 / 1.0001) / 2.0001, abs=1e-15)
    assert (losses + losses).mean.item() == pytest.approx(2 * (2 / 2.0001 + 1 / 1.0001) / 4.0001, abs=1e-15)


def changed_at(batch, places, **amounts):
    """The batch with other features or boxes at the regions of `places`."""
    new = {name: getattr(batch, name).clone() for name in amounts}
    for name, amount in amounts.items():
        new[name][places] += amount
    return dataclasses.replace(batch, **new)


@pytest.mark.parametrize(
    "appearance, feature_shows, box_shows",
    [("learned", False, True), ("pixels", True, True), ("embedding", False, False), ("none", True, True)],
)
def test_what_shows_of_a_masked_region(appearance, feature_shows, box_shows):
    model = make_model(masked_appearance=appearance, masked_region_token=appearance != "none")
    batch = make_batch()
    with torch.no_grad():
        before = model.encode(batch).text_states
        feature = model.encode(changed_at(batch, batch.masked_regions, region_features=3.0)).text_states
        box = model.encode(changed_at(batch, batch.masked_regions, region_boxes=9.0)).text_states
        plain = model.encode(dataclasses.replace(batch, masked_regions=torch.zeros_like(batch.masked_regions)))
    assert torch.equal(before, feature) != feature_shows
    assert torch.equal(before, box) != box_shows
    assert torch.equal(before, plain.text_states) == (appearance == "none")


@pytest.mark.parametrize("appearance", ["pixels", "learned"])
def test_only_pixels_let_gradients_into_a_masked_region_s_feature(appearance):
    """Those of an encoder that is trained, which shows blanked pixels; the whole image is its own to make."""
    model, batch = make_model(masked_appearance=appearance), make_batch()
    features, whole = batch.region_features.requires_grad_(), batch.whole_image_features.requires_grad_()
    sum(term.mean for term in model(batch).losses.values()).backward()
    gradient = features.grad.abs().amax(dim=2)
    assert (gradient[batch.region_mask & ~batch.masked_regions] > 0).all()
    assert (gradient[batch.masked_regions] > 0).all() == (appearance == "pixels")
    assert (whole.grad.abs().amax(dim=1) > 0).all()
    assert ("vlbert.masked_region_feature.weight" in model.state_dict()) == (appearance == "learned")
    bare = dataclasses.replace(batch, whole_image_features=None)
    if appearance == "pixels":
        with pytest.raises(ValueError, match=r"'pixels' needs VLBatch.whole_image_features"):
            model(bare)


def test_masked_regions_of_one_image_look_alike_without_their_box():
    model, batch = make_model("paper"), make_batch()
    both = torch.zeros_like(batch.masked_regions)
    both[1, :2] = True
    with torch.no_grad():
        elements = image_elements(dataclasses.replace(batch, masked_regions=both))
        tokens, visuals = model.vlbert.embed_elements(elements, batch.image_hw)
    assert torch.equal(visuals[1, 1], visuals[1, 2]) and not torch.equal(visuals[1, 2], visuals[1, 3])
    # The paper's masked region keeps [IMG].
    assert torch.equal(tokens[1, 1], tokens[1, 3]) and model.vlbert.masked_region_token is None


def test_the_whole_image_is_an_element_or_not():
    batch = make_batch()
    with torch.no_grad():
        inside = make_model().encode(batch, with_attention=True)
        outside = make_model(whole_image_element=False).encode(batch, with_attention=True)
    assert inside.whole_image_state is not None and outside.whole_image_state is None
    text, regions = batch.text_ids.shape[1], batch.region_mask.shape[1]
    assert outside.attention.joint[0].shape[-1] == text + regions + 1 == inside.attention.joint[0].shape[-1] - 1
    assert outside.region_states.shape == inside.region_states.shape
    for name in ("paper", "release"):
        assert (make_model(name).encode(batch).whole_image_state is None) == (name == "paper")


def test_what_non_visual_elements_carry():
    batch = make_batch(aligned_words=words(3, 5, (0, 2, 3), (0, 0, 5), (1, 4, 1), (1, 4, 2)))
    with torch.no_grad():
        for choice in ("whole_image", "grounded", "none"):
            model = make_model(text_visual=choice)
            _, visuals = model.vlbert.embed_elements(image_elements(batch), batch.image_hw)
            whole, pieces = model.vlbert.text_visuals(batch, visuals)
            want = visuals[:, :1].expand(-1, 7, -1).clone()
            if choice == "none":
                want = torch.zeros_like(want)
            if choice == "grounded":
                want[0, [3, 5]], want[1, [1, 2]] = visuals[0, [3, 1]], visuals[1, [5, 5]]
            assert torch.equal(pieces, want)
            assert torch.equal(whole, want[:, 0])
    with pytest.raises(ValueError, match="'grounded' needs VLBatch"):
        make_model(text_visual="grounded").encode(dataclasses.replace(batch, aligned_words=None))


def test_the_last_region_that_names_a_piece_counts():
    assert elements_of_pieces(words(1, 3, (0, 0, 1), (0, 2, 1), (0, 1, 1), (0, 1, 3)), 4).tolist() == [[0, 3, 0, 2]]


def test_end_has_the_visual_feature_of_the_whole_image():
    batch = make_batch()
    seen = []
    for end in (False, True):
        model = make_model(end_visual=end)
        model.vlbert.embeddings.norm.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0]))
        with torch.no_grad():
            model.encode(batch)
            _, visuals = model.vlbert.embed_elements(image_elements(batch), batch.image_hw)
            added = model.vlbert.embeddings.visual_norm_text(visuals[:, 0])
    without, with_visual = seen
    torch.testing.assert_close(with_visual[:, -1], without[:, -1] + added)
    assert torch.equal(with_visual[:, :-1], without[:, :-1])


def test_norms_and_scales():
    batch = make_batch()
    inputs, start = {}, 0.25
    for norm in ("layer_norm", "scale", "none"):
        model = make_model(visual_norm=norm, visual_norm_text_init=start, visual_norm_region_init=start)
        model.vlbert.embeddings.norm.register_forward_hook(lambda _m, i, _o, norm=norm: inputs.update({norm: i[0]}))
        with torch.no_grad():
            model.encode(batch)
    with torch.no_grad():
        _, visuals = model.vlbert.embed_elements(image_elements(batch), batch.image_hw)
    real = image_elements(batch).mask
    found = {norm: embedded[:, 7:-1][real] for norm, embedded in inputs.items()}
    visuals = visuals[real]
    base = found["none"] - visuals  # token, segment and position
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found["scale"], base + start * visuals, **near)
    torch.testing.assert_close(found["layer_norm"], base + start * F.layer_norm(visuals, (32,), eps=1e-12), **near)


def test_a_visual_size_of_its_own():
    model = make_model(visual_size=20)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "visual_widen" in name or "proj" in name}
    assert shapes["vlbert.region_projection.linear.weight"] == (20, 16 + FEATURES)
    assert shapes["vlbert.embeddings.visual_widen_text.weight"] == (32, 20)
    assert model.vlbert.embeddings.visual_norm_text.weight.shape == (32,)
    assert not any("widen" in name for name, _ in make_model(visual_size=32).named_parameters())


@pytest.mark.parametrize("start", ["release", "normal"])
def test_start_of_what_is_visual(start):
    model = make_model(
        visual_start=start, visual_norm_text_init=0.0, hidden_size=256, region_feature_size=512, initializer_range=0.02
    )
    norm, projection = model.vlbert.embeddings.visual_norm_text, model.vlbert.region_projection.linear
    normal = start == "normal"
    assert norm.weight.std().item() == pytest.approx(0.02 if normal else 0.0, rel=0.2)
    assert norm.bias.abs().max() == 0
    assert model.vlbert.masked_region_feature.weight.std().item() == pytest.approx(0.02 if normal else 0.0, rel=0.2)
    # PyTorch's own start is uniform up to 1 / sqrt(inputs).
    spread = 0.02 if normal else (1 / projection.in_features / 3) ** 0.5
    assert projection.weight.std().item() == pytest.approx(spread, rel=0.05)
    assert (projection.bias.abs().max() == 0) == normal


def test_start_values_are_those_of_the_release():
    torch.manual_seed(0)
    model = VLBertForPreTraining(vlbert_small(vocab_size=300))
    embeddings = model.vlbert.embeddings
    assert embeddings.visual_norm_text.weight.abs().max() == 0 == embeddings.visual_norm_region.weight.abs().max()
    assert (embeddings.norm.weight == 1).all()
    assert embeddings.words.weight.std().item() == pytest.approx(0.02, rel=0.02)


# --- rows without an image ---


def text_only_batch(last_row=True, **fields):
    """Row 2 has no image; what its image fields hold must not matter."""
    hw = torch.tensor([[150.0, 200.0], [150.0, 200.0], [0.0, 0.0]])
    return make_batch(text_only=torch.tensor([False, False, last_row]), image_hw=hw, **fields)


def test_rows_without_an_image():
    model, batch = make_model("release"), text_only_batch()
    other = changed_at(batch, torch.tensor([False, False, True]), region_features=5.0, whole_image_features=4.0)
    with torch.no_grad():
        before, after = model.encode(batch), model.encode(other)
        maps = model.encode(batch, with_attention=True).attention.joint[0]
    assert torch.equal(before.text_states, after.text_states)
    assert maps[2, :, 0, 7:-1].abs().max() == 0 and maps[2, :, 0, -1].min() > 0  # [END] is there, elements are not
    model.score(batch, model.encode(batch)).losses["text_only_words"].mean.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.vlbert.text_only_visual.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="with_text_only=True"):
        make_model().encode(batch)


def test_words_without_an_image_have_a_gradient_in_any_batch():
    """Ranks of one run must agree about what has a gradient, whatever rows each has."""
    model = make_model("release", with_pooler=True, with_relationship_head=True)
    scored = model(text_only_batch())
    assert scored.losses["matching"].count == 2 and scored.metrics["text_only_word_accuracy"].count == 2
    model(text_only_batch(last_row=False)).losses["masked_words"].mean.backward()
    assert model.vlbert.text_only_visual.weight.grad.abs().max() == 0


# --- objectives ---


def test_hard_region_labels_leave_the_background_out():
    model, batch = make_model(region_labels="hard"), make_batch()
    batch.region_targets[0, 0] = torch.tensor([0.1, 0.2, 0.0, 0.0, 0.1, 0.0, 0.6])  # background is the largest
    chosen = batch.region_target_mask
    with torch.no_grad():
        output = model.encode(batch)
        loss = model.score(batch, output).losses["masked_regions"]
        logits = model.region_logits(output.region_states[chosen])
    want = batch.region_targets[chosen][:, :-1].argmax(dim=1)
    assert want[0] == 1
    torch.testing.assert_close(loss.mean, F.cross_entropy(logits, want))


def test_means_of_rows():
    batch = make_batch()
    labels, predicted = batch.text_labels.clone(), batch.region_target_mask.clone()
    labels[0, 2], labels[1] = IGNORE_INDEX, IGNORE_INDEX  # one word, none, two
    predicted[1, 1], predicted[2] = True, False  # one region, two, none
    batch = dataclasses.replace(batch, text_labels=labels, region_target_mask=predicted)
    model = make_model(word_loss_mean="rows", region_loss_mean="rows")
    with torch.no_grad():
        output = model.encode(batch)
        losses = model.score(batch, output).losses
        words, regions = model.word_logits(output.text_states), model.region_logits(output.region_states)
    row_means = [F.cross_entropy(words[row], labels[row]) for row in (0, 2)]
    torch.testing.assert_close(losses["masked_words"].mean, sum(row_means) / 2, rtol=2e-4, atol=0)
    targets = batch.region_targets
    row_means = [F.cross_entropy(regions[row][predicted[row]], targets[row][predicted[row]]) for row in (0, 1)]
    torch.testing.assert_close(losses["masked_regions"].mean, sum(row_means) / 2, rtol=2e-4, atol=0)
    nothing = torch.full_like(labels, IGNORE_INDEX)
    none = model.score(dataclasses.replace(batch, text_labels=nothing), output).losses["masked_words"]
    assert none.count == 0 and none.mean == 0


def test_tasks_that_are_switched_off():
    model = make_model(with_word_head=False)
    assert set(model(make_batch(text_labels=None)).losses) == {"masked_regions"}
    with pytest.raises(ValueError, match="with_word_head=False"):
        model.word_logits(torch.zeros(1, 32))
    model = make_model(with_region_head=False)
    assert set(model(make_batch(region_targets=None, region_target_mask=None)).losses) == {"masked_words"}
    assert model.region_logits(torch.zeros(1, 32)) is None


# --- presets and errors ---


def test_presets_are_what_they_are_named_after():
    paper, release = vlbert_config("paper"), vlbert_config("release")
    assert (paper.box_numbers, release.box_numbers) == ("corners", "centre_size")
    assert (paper.region_labels, release.region_labels) == ("hard", "soft")
    assert (paper.with_relationship_head, release.with_relationship_head) == (True, False)
    assert (paper.visual_start, release.visual_start) == ("normal", "release")
    assert (paper.with_text_only, release.with_text_only) == (False, True)
    assert vlbert_config("release-e2e").masked_appearance == "pixels"
    large = vlbert_config("release", size="large")
    assert (large.hidden_size, large.num_hidden_layers, large.visual_width) == (1024, 24, 1024)
    assert vlbert_base().to_diff_dict() == VLBertConfig().to_diff_dict()
    assert vlbert_small(num_hidden_layers=2).num_hidden_layers == 2
    assert vlbert_task_config("vcr").text_visual == "grounded"
    assert vlbert_task_config("vcr", "paper").object_loss == "masked"
    assert vlbert_task_config("vqa", "paper", size="large").answer_loss == "softmax"


def test_base_is_the_released_size():
    with torch.device("meta"):
        model = VLBertForPreTraining(vlbert_base())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(114.5e6, rel=0.005)  # reference/vl-bert.md, section 12


def test_a_file_with_an_unknown_field_is_refused(tmp_path):
    make_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"hidden_dropout"', '"hidden_dropuot"'))
    with pytest.raises(ValueError, match="hidden_dropuot"):
        VLBertForPreTraining.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: VLBertConfig(hiden_size=64), "unknown field 'hiden_size'; did you mean hidden_size"),
        (lambda: vlbert_small(num_layers=3), "num_hidden_layers"),
        (lambda: VLBertConfig(id2label={0: "a"}), "unknown field 'id2label'"),
        (lambda: VLBertConfig(hidden_size=100), "not a multiple of num_attention_heads 12"),
        (lambda: VLBertConfig(coordinate_embedding_size=20), "multiple of 8"),
        (lambda: VLBertConfig(with_relationship_head=True), "with_pooler=True"),
        (lambda: VLBertConfig(masked_appearance="zero"), "masked_appearance is 'zero'; it must be one of 'learned'"),
        (lambda: make_model()(make_batch(lengths=(23, 3, 3))), "cut captions to 22 pieces"),
        (lambda: vlbert_config("papre"), "no VL-BERT preset 'papre'; there are release, release-captions"),
        (lambda: vlbert_config(size="huge"), "no VL-BERT size 'huge'"),
        (lambda: vlbert_task_config("nlvr2"), "no VL-BERT task 'nlvr2'"),
        (lambda: vlbert_config(box_numbers="polar"), "box_numbers is 'polar'"),
        (lambda: vlbert_config(masked_appearance="none"), "set masked_region_token=False"),
        (lambda: vlbert_config(visual_size=-1), "must not be negative"),
        (lambda: vlbert_task_config("vqa", with_relationship_head=True, with_pooler=True), "no pre-training heads"),
        (lambda: vlbert_task_config("vcr", object_loss="masked"), "needs a masked_appearance other than 'none'"),
        (lambda: vlbert_task_config("vqa", answer_loss="hinge"), "answer_loss is 'hinge'"),
    ],
)
def test_config_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()
