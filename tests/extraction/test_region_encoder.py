"""The region encoder as a part that is trained: what moves, what stays, what a batch may not change; regions hidden in
photos and in the network's input, and what the resize between the two carries over their edges."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.resnet import NormedConv
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.photos.preprocessing import blank_photo, blank_regions
from roibeam.extraction.region_encoder import STAGES, RegionEncoder, collate_photos, load_encoder_weights, prepare_photo
from roibeam.extraction.weights.families import family_names
from roibeam.extraction.weights.loading import build_detector

TINY = DetectorConfig(
    depth=50, base_channels=4, num_classes=5, num_attributes=3, rpn_hidden_channels=8, short_edge=48, long_edge=80
)
CONVENTION = CONVENTIONS["vlbert-e2e"]


def tiny_encoder(**arguments):
    torch.set_num_threads(1)
    encoder = RegionEncoder(TINY, **arguments)
    load_encoder_weights("random:1", encoder)
    return encoder


@pytest.fixture(scope="module")
def encoder():
    """Shared: read only."""
    return tiny_encoder()


@pytest.fixture
def boxes():
    return np.array([[0, 0, 159, 119], [10, 20, 90, 100], [60.5, 30, 150, 80], [5, 5, 5, 5]], np.float32)


@pytest.fixture
def batch(noise_image, boxes):
    """Two photos of different shape, four and two boxes."""
    upright = np.ascontiguousarray(noise_image.transpose(1, 0, 2)[::-1])
    photos = ((noise_image, boxes), (upright, boxes[1:3] / 2))
    return collate_photos([prepare_photo(image, own, TINY, CONVENTION) for image, own in photos])


def features(encoder, batch, **changes):
    changed = dataclasses.replace(batch, **changes)
    with torch.no_grad():
        return encoder(changed.pixels, changed.boxes, changed.region_mask)


def test_shape_and_padding_rows(encoder, batch):
    got = features(encoder, batch)
    assert got.shape == (2, 4, encoder.feature_dim) == (2, 4, 128)
    assert batch.region_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert not got[1, 2:].any() and (got[batch.region_mask].amax(1) > 0).all()
    assert torch.equal(features(tiny_encoder().train(), batch), got)


QUIRKS = {
    "channel_order": "rgb", "resize": "float-bilinear", "stem_pool": "pad-0-ceil", "stride_conv": "3x3",
    "norm_eps": 1e-3, "res5_stride": 2, "res5_dilation": 1, "region_pool": "roi-pool", "box_clip": "edge",
}  # fmt: skip


@pytest.mark.parametrize("convention", QUIRKS)
def test_each_convention_shows_in_the_features(convention, noise_image, boxes):
    made = []
    for conventions in (CONVENTION, dataclasses.replace(CONVENTION, **{convention: QUIRKS[convention]})):
        batch = collate_photos([prepare_photo(noise_image, boxes, TINY, conventions)])
        made.append(features(tiny_encoder(conventions=conventions), batch))
    assert (made[1] - made[0]).abs().max() > 1e-3 * made[0].abs().max()


def test_outlines_are_told_in_channels_of_the_map_as_r2c_does(batch):
    """A convolution of the outline, minus a half, is added to the first channels before res5; whole boxes are ones, and
    what tells outlines is trained beside a frozen ResNet."""
    config = dataclasses.replace(TINY, pooled_cells=7)
    torch.manual_seed(0)
    encoder = RegionEncoder(config, CONVENTIONS["r2c"], frozen_stages=STAGES, mask_channels=8)
    load_encoder_weights("random:1", encoder)
    rows, boxes = batch.region_mask.shape
    outlines = torch.rand(rows, boxes, 14, 14).round()
    found = encoder(batch.pixels, batch.boxes, batch.region_mask, outlines)
    with torch.no_grad():
        real = [own[mask] for own, mask in zip(batch.boxes, batch.region_mask, strict=True)]
        pooled = pool_regions(encoder.backbone(batch.pixels), real, encoder.conventions, cells=7)
        shown = outlines[batch.region_mask][:, None] - 0.5
        pooled[:, :8] += torch.nn.functional.conv2d(shown, *encoder.mask_conv.parameters(), stride=2, padding=1)
        torch.testing.assert_close(found[batch.region_mask], encoder.roi_heads["res5"](pooled).mean(dim=(2, 3)))
        whole = encoder(batch.pixels, batch.boxes, batch.region_mask)
        ones = encoder(batch.pixels, batch.boxes, batch.region_mask, torch.ones_like(outlines))
        torch.testing.assert_close(whole, ones)
        assert not torch.allclose(whole, found)
    found.sum().backward()
    trained = {name for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    assert trained == {"mask_conv.weight", "mask_conv.bias"}
    with pytest.raises(ValueError, match="takes 14 x 14 cells"):
        encoder(batch.pixels, batch.boxes, batch.region_mask, outlines[..., :7, :7])
    with pytest.raises(ValueError, match="mask_channels is 65; the map has 64 channels"):
        RegionEncoder(config, mask_channels=65)


def test_cell_weights_act_before_the_mean_over_all_cells(encoder, batch):
    rows, boxes = batch.region_mask.shape
    ones = torch.ones(rows, boxes, 14, 14)
    plain = features(encoder, batch)

    def weighted(weights):
        with torch.no_grad():
            return encoder(batch.pixels, batch.boxes, batch.region_mask, weights)

    torch.testing.assert_close(weighted(ones), plain)
    torch.testing.assert_close(weighted(ones / 2), plain / 2)
    left = ones.clone()
    left[..., 7:] = 0
    torch.testing.assert_close(weighted(left) + weighted(1 - left), plain, rtol=1e-4, atol=1e-5)
    left[0] = 1.0  # each box has its own
    half = weighted(left)
    torch.testing.assert_close(half[0], plain[0])
    assert (half[1, 0] - plain[1, 0]).abs().max() > 1e-3


def test_order_of_boxes_and_what_stands_in_padding_change_nothing(encoder, batch):
    want = features(encoder, batch)
    order = torch.tensor([2, 0, 3, 1])
    permuted = features(encoder, batch, boxes=batch.boxes[:, order], region_mask=batch.region_mask[:, order])
    torch.testing.assert_close(permuted, want[:, order], rtol=1e-5, atol=1e-5)
    garbage = torch.where(batch.region_mask[..., None], batch.boxes, torch.nan)
    assert torch.equal(features(encoder, batch, boxes=garbage), want)
    pad = torch.nn.functional.pad
    wider = {"boxes": pad(batch.boxes, (0, 0, 0, 3), value=-2.0), "region_mask": pad(batch.region_mask, (0, 3))}
    assert torch.equal(features(encoder, batch, **wider)[:, :4], want)


def test_other_photos_change_nothing_but_their_size_does(encoder, batch):
    """The release pads with zeros, which the first batch norm makes a constant that is not a photo's border: so a photo
    alone has another map than in a batch that is wider or higher, and every region feels it."""
    want = features(encoder, batch)[0]
    neighbour_gone = batch.pixels.clone()
    neighbour_gone[1] = 0
    assert torch.equal(features(encoder, batch, pixels=neighbour_gone)[0], want)
    height, width = batch.input_hw[0].int().tolist()
    alone = features(encoder, batch, pixels=batch.pixels[:1, :, :height, :width].expand(2, -1, -1, -1))[0]
    assert batch.pixels.shape[2:] != (height, width)
    assert ((alone - want).abs().amax(1) > 1e-3 * want.amax()).all()


def test_padding_reaches_as_far_as_the_receptive_field(encoder):
    """291 pixels wide for a ResNet-50 to stride 16: the map left of that is the same with padding at the right."""
    strip = torch.randn(1, 3, 32, 640, generator=torch.Generator().manual_seed(0)) * 50
    with torch.no_grad():
        alone = encoder.backbone(strip)
        padded = encoder.backbone(torch.nn.functional.pad(strip, (0, 64)))[..., : alone.shape[-1]]
    difference = (alone - padded).abs().amax(dim=(0, 1, 2)) / alone.abs().max()
    assert difference[:-10].max() < 1e-5 and difference[-1] > 1e-2


@pytest.mark.parametrize("frozen", [(1, 2), (), (5,), (1, 2, 3, 4)])
def test_only_stages_that_are_not_frozen_get_gradients(frozen, batch):
    encoder = tiny_encoder(frozen_stages=frozen)
    encoder(batch.pixels, batch.boxes, batch.region_mask).square().sum().backward()
    for stage, name in STAGES.items():
        gradients = [parameter.grad for parameter in encoder.get_submodule(name).parameters()]
        assert gradients
        if stage in frozen:
            assert all(gradient is None for gradient in gradients), name
        else:
            assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients), name
    assert not [name for name, _ in encoder.named_parameters() if ".norm." in name]


def test_a_fixed_norm_folded_into_its_convolution_trains_it_alike():
    """Values, gradients, and the norm's tensors of now."""
    generator = torch.Generator().manual_seed(2)
    conv = NormedConv(6, 10, 3, stride=2, dilation=2, eps=1e-3).double()
    for buffer in conv.norm.buffers():
        buffer.copy_(torch.rand(10, generator=generator) + 0.5)
    x = torch.randn(2, 6, 9, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        conv(x)  # what it remembers is trained with afterwards
    for _ in range(2):
        want = conv.norm(torch.nn.functional.conv2d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation))
        got = conv(x)
        assert want.shape == got.shape and torch.allclose(want, got, rtol=1e-12, atol=1e-12)
        slope = torch.randn(want.shape, generator=generator, dtype=torch.float64)
        both = [torch.autograd.grad((out * slope).sum(), [x, conv.weight]) for out in (want, got)]
        for one, other in zip(*both, strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
        conv.norm.running_var.mul_(3)


@pytest.mark.parametrize("count", [0, 2])
def test_a_batch_without_boxes(encoder, batch, count):
    nothing = torch.zeros(2, count, dtype=torch.bool)
    got = encoder(batch.pixels, batch.boxes[:, :count], nothing)
    assert got.shape == (2, count, encoder.feature_dim) and not got.any()
    got.sum().backward()  # a step on it must not stop a training


def test_under_autocast_boxes_stay_exact(encoder, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = features(encoder, batch)[batch.region_mask]
    assert got.dtype == torch.bfloat16
    cosine = torch.nn.functional.cosine_similarity(got.float(), features(encoder, batch)[batch.region_mask])
    assert (cosine > 0.999).all()


def kept_bytes_and_gradients(encoder, batch, cell_weights=None):
    """What a forward pass keeps for the backward pass, weights and inputs left out, and the gradients."""
    given = {tensor.data_ptr() for tensor in [*encoder.state_dict().values(), batch.pixels, batch.boxes]}
    kept: dict[int, int] = {}

    def note(tensor):
        if tensor.data_ptr() not in given:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        got = encoder(batch.pixels, batch.boxes, batch.region_mask, cell_weights)
    got.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    return got.detach(), sum(kept.values()), gradients


@pytest.mark.parametrize("weighted", [False, True])
def test_recomputing_keeps_less_and_changes_nothing(batch, weighted):
    weights = torch.rand(2, 4, 14, 14, generator=torch.Generator().manual_seed(0)) if weighted else None
    want, all_kept, gradients = kept_bytes_and_gradients(tiny_encoder(), batch, weights)
    got, few_kept, again = kept_bytes_and_gradients(tiny_encoder(recompute=True), batch, weights)
    assert torch.equal(got, want) and few_kept < all_kept / 5
    assert gradients.keys() == again.keys() and all(torch.equal(gradients[name], again[name]) for name in gradients)


@pytest.mark.parametrize("region_chunk, recompute", [(1, False), (2, True), (5, False), (5, True), (100, True)])
def test_chunks_of_regions_change_the_last_digits_only(batch, region_chunk, recompute):
    weights = torch.rand(2, 4, 14, 14, generator=torch.Generator().manual_seed(0))
    chunked = tiny_encoder(region_chunk=region_chunk, recompute=recompute)
    want, _, gradients = kept_bytes_and_gradients(tiny_encoder(), batch, weights)
    got, _, again = kept_bytes_and_gradients(chunked, batch, weights)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())


@pytest.mark.parametrize(
    "changes, cell_weights, words",
    [
        ({"boxes": torch.zeros(2, 3, 4)}, None, r"boxes \(B, R, 4\).*got .*\(2, 3, 4\) and \(2, 4\) torch.bool"),
        ({}, torch.ones(2, 3, 14, 14), r"cell_weights must be \(2, 4, h, w\).*got \(2, 3, 14, 14\)"),
        ({}, torch.ones(2, 4, 7, 7), r"cell_weights are \(7, 7\), the cells of res5 \(14, 14\)"),
    ],
)
def test_arguments_that_do_not_belong_together(encoder, batch, changes, cell_weights, words):
    changed = dataclasses.replace(batch, **changes)
    with pytest.raises(ValueError, match=words):
        encoder(changed.pixels, changed.boxes, changed.region_mask, cell_weights)


def test_encoders_that_cannot_be():
    with pytest.raises(ValueError, match=r"frozen_stages has \[6\]; there are .*4: 'backbone.res4'"):
        RegionEncoder(TINY, frozen_stages=(1, 6))
    with pytest.raises(ValueError, match="region_chunk is 0; it must be at least 1"):
        RegionEncoder(TINY, region_chunk=0)


def test_weights_of_every_kind_of_file(encoder, tmp_path):
    state = encoder.state_dict()
    save_file(build_detector(TINY, weights="random:1").state_dict(), tmp_path / "detector.safetensors")
    bare = {family_names("vlbert")[name]: tensor for name, tensor in state.items()}
    torch.save(bare, tmp_path / "resnet50-0000.model")
    names = {name: f"module.image_feature_extractor.{family_names('vlbert-checkpoint')[name]}" for name in state}
    official = {names[name]: tensor for name, tensor in state.items()}
    again = {name.replace("roi_head_feature_extractor.", "head.0."): tensor for name, tensor in official.items()}
    other = {"module.vlbert.end_embedding.weight": torch.zeros(1, 8)}
    torch.save({"state_dict": official | again | other}, tmp_path / "checkpoint.pth")
    for path in tmp_path.iterdir():
        loaded = RegionEncoder(TINY)
        load_encoder_weights(str(path), loaded)
        assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items()), path.name


def test_weights_that_do_not_fit_are_listed_and_nothing_is_loaded(encoder, tmp_path):
    state = {family_names("vlbert")[name]: tensor for name, tensor in encoder.state_dict().items()}
    del state["layer4.2.conv3.weight"]
    state["layer3.0.conv1.weight"] = torch.full_like(state["layer3.0.conv1.weight"], torch.inf)
    torch.save(state, tmp_path / "damaged.model")
    fresh = RegionEncoder(TINY)
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    with pytest.raises(ValueError, match=r"roi_heads.res5.2.conv3.weight .*non-finite: backbone.res4.0.conv1.weight"):
        load_encoder_weights(str(tmp_path / "damaged.model"), fresh)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


class TestPreparePhoto:
    def test_boxes_go_along_and_stay_inside(self, noise_image):
        outside = np.array([[0, 0, 159, 119], [-10, 20, 500, 119.9], [100, 50, 140, 60]], np.float64)
        photo = prepare_photo(noise_image, outside, TINY, CONVENTION)
        assert photo.input_hw == (48, 64) and photo.image_hw == (120, 160)
        np.testing.assert_allclose(photo.scale_xy, [0.4, 0.4], rtol=1e-6)
        # Clipped to the last pixel of the resized photo, not to its edge.
        np.testing.assert_allclose(photo.boxes, [[0, 0, 63, 47], [0, 8, 63, 47], [40, 20, 56, 24]], rtol=1e-6)

    def test_flip_mirrors_pixels_and_boxes(self, noise_image, boxes):
        plain = prepare_photo(noise_image, boxes, TINY, CONVENTION)
        mirrored = prepare_photo(noise_image, boxes, TINY, CONVENTION, flip=True)
        assert torch.equal(mirrored.pixels, plain.pixels.flip(-1))
        torch.testing.assert_close(mirrored.boxes[1:, 0], 63 - plain.boxes[1:, 2])
        torch.testing.assert_close(mirrored.boxes[1:, 2], 63 - plain.boxes[1:, 0])
        assert torch.equal(mirrored.boxes[:, 1::2], plain.boxes[:, 1::2])

    def test_flip_leaves_the_padding_of_the_conventions_at_the_right(self, noise_image, boxes):
        padding = dataclasses.replace(CONVENTION, padding_multiple=40)
        plain = prepare_photo(noise_image, boxes, TINY, padding)
        mirrored = prepare_photo(noise_image, boxes, TINY, padding, flip=True)
        assert mirrored.pixels.shape == (3, 80, 80) and not mirrored.pixels[:, :, 64:].any()
        assert torch.equal(mirrored.pixels[:, :48, :64], plain.pixels[:, :48, :64].flip(-1))

    @pytest.mark.parametrize("flip", [False, True])
    def test_masked_regions_lose_their_pixels_and_nothing_else(self, encoder, noise_image, boxes, flip):
        plain = prepare_photo(noise_image, boxes, TINY, CONVENTION, flip=flip)
        masked = np.array([False, True, False, False])
        hidden = prepare_photo(noise_image, boxes, TINY, CONVENTION, flip=flip, masked=masked)
        x1, y1, x2, y2 = plain.boxes[1].int().tolist()
        expected = plain.pixels.clone()
        expected[:, y1 : y2 + 1, x1 : x2 + 1] = 0  # the mean colour, last row and column included
        assert torch.equal(hidden.pixels, expected) and torch.equal(hidden.boxes, plain.boxes)
        # Regions that overlap it lose the same pixels: no feature is swapped or left out.
        by_hand = collate_photos([dataclasses.replace(plain, pixels=expected)])
        got, seen = features(encoder, collate_photos([hidden])), features(encoder, collate_photos([plain]))
        assert torch.equal(got, features(encoder, by_hand))
        assert ((got - seen).abs().amax(2) > 1e-3).all()

    @pytest.mark.parametrize(
        "wrong, message",
        [
            (np.zeros((2, 5)), r"boxes must be \(R, 4\) numbers.*got \(2, 5\)"),
            (np.array([[0, 0, 5, 5], [9, 0, 5, 5]]), r"box 1 is \[9, 0, 5, 5\].*x1 <= x2"),
            (np.array([[0, 0, np.nan, 5.0]]), r"box 0 is \[0.0, 0.0, nan, 5.0\]"),
        ],
    )
    def test_wrong_boxes(self, noise_image, wrong, message):
        with pytest.raises(ValueError, match=message):
            prepare_photo(noise_image, wrong, TINY, CONVENTION)

    def test_wrong_mask_and_no_photo(self, noise_image, boxes):
        with pytest.raises(ValueError, match=r"masked must be \(4,\) bool.*got \(4,\) int64"):
            prepare_photo(noise_image, boxes, TINY, CONVENTION, masked=np.array([0, 1, 0, 0]))
        with pytest.raises(ValueError, match="at least one photo"):
            collate_photos([])

    def test_boxes_go_back_to_the_photo(self, batch, boxes):
        torch.testing.assert_close(batch.photo_boxes[0, 1:3], torch.from_numpy(boxes[1:3]))
        assert batch.to("cpu").image_hw.tolist() == [[120, 160], [160, 120]]

    def test_a_photo_without_boxes(self, noise_image):
        batch = collate_photos([prepare_photo(noise_image, np.zeros((0, 4)), TINY, CONVENTION)])
        assert batch.boxes.shape == (1, 0, 4) and batch.region_mask.shape == (1, 0)


ENCODER = CONVENTIONS["vlbert-e2e"]
EDGES = DetectorConfig(short_edge=48, long_edge=80)


@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        ((1.9, 2.2, 4.0, 5.9), range(2, 6), range(1, 5)),
        ((3, 3, 3, 3), range(3, 4), range(3, 4)),
        ((-5, -5, 2, 1), range(0, 2), range(0, 3)),
        ((7, 4, 30, 30), range(4, 8), range(7, 10)),
        ((-9, -9, -2, -2), range(0), range(0)),
    ],
)
def test_whole_pixels_from_the_first_corner_to_the_last(box, rows, columns):
    photo, pixels = np.full((8, 10, 3), 7, np.uint8), torch.full((3, 8, 10), 7.0)
    boxes = np.array([box], np.float32)
    blank = np.zeros((8, 10), bool)
    blank[np.ix_(rows, columns)] = True
    assert np.array_equal((blank_photo(photo, boxes, ENCODER) != 7).all(axis=2), blank)
    assert np.array_equal((blank_regions(pixels, torch.from_numpy(boxes)) == 0).all(dim=0).numpy(), blank)
    assert (photo == 7).all() and (pixels == 7).all()


def test_a_blank_photo_has_the_mean_colour_in_its_own_channel_order():
    photo, boxes = np.zeros((4, 4, 3), np.uint8), np.array([[0, 0, 1, 1]], np.float32)
    mean = np.rint(ENCODER.pixel_mean).astype(int).tolist()  # B, G, R
    assert blank_photo(photo, boxes, ENCODER)[0, 0].tolist() == mean and len(set(mean)) == 3
    rgb = dataclasses.replace(ENCODER, channel_order="rgb", pixel_mean=tuple(reversed(ENCODER.pixel_mean)))
    assert blank_photo(photo, boxes, rgb)[0, 0].tolist() == mean


@pytest.mark.parametrize("preset", ["vlbert-e2e", "hf", "caffe"])  # resizes of Pillow, of the device, of OpenCV
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("image_hw", [(31, 43), (110, 90)])  # made larger, made smaller
def test_blanked_before_the_resize_nothing_is_carried_over(preset, flip, image_hw):
    random, boxes = np.random.default_rng(0), np.array([[4.5, 6.2, 20.7, 25.1], [8, 2, 30, 12]], np.float32)
    photo = random.integers(0, 256, (*image_hw, 3), dtype=np.uint8)
    other = photo.copy()
    for x1, y1, x2, y2 in boxes.astype(int).tolist():
        other[y1 : y2 + 1, x1 : x2 + 1] = random.integers(0, 256, (y2 + 1 - y1, x2 + 1 - x1, 3))
    masked = np.ones(2, bool)
    changed = {}
    for before in (True, False):
        ours, theirs = (
            prepare_photo(each, boxes, EDGES, CONVENTIONS[preset], flip=flip, masked=masked, blank_before_resize=before)
            for each in (photo, other)
        )
        for x1, y1, x2, y2 in ours.boxes.int().tolist():
            assert not ours.pixels[:, y1 : y2 + 1, x1 : x2 + 1].any()
        changed[before] = int((ours.pixels != theirs.pixels).any(dim=0).sum())
    assert changed[True] == 0
    # Without antialiasing, making a photo smaller reads few pixels, and may read none across these edges.
    assert changed[False] > 0 or (preset != "vlbert-e2e" and image_hw[0] > EDGES.short_edge)


def test_what_is_not_hidden_is_as_it_was():
    photo = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    boxes = np.array([[4, 6, 20, 25], [30, 30, 50, 50]], np.float32)
    plain, none = (
        prepare_photo(photo, boxes, EDGES, ENCODER, masked=np.zeros(2, bool), blank_before_resize=before)
        for before in (False, True)
    )
    assert torch.equal(plain.pixels, none.pixels)
