"""torchvision's detectors and backbones beside the bare library, number by number, on random weights."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.models import get_model, get_model_weights, vision_transformer
from torchvision.models._api import WeightsEnum
from torchvision.models.detection.transform import resize_boxes
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.vision_transformer import interpolate_embeddings
from torchvision.transforms.functional import pil_to_tensor

from roibeam.extraction.adapters import torchvision_models
from roibeam.extraction.adapters.any_detector import ModelDetector, RegionBackbone, arithmetic
from roibeam.extraction.network.conventions import DETECTIONS, SELECTIONS
from roibeam.extraction.weights.named_model import NamedModel

FASTER = "fasterrcnn_mobilenet_v3_large_320_fpn"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    """ViT of two narrow blocks: 88 million numbers take seconds to draw."""
    small = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    full = vision_transformer.VisionTransformer
    monkeypatch.setattr(vision_transformer, "VisionTransformer", lambda **fields: full(**{**fields, **small}))


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Coarse blocks: all that a photo needs for a random network to find something."""
    colours = np.random.default_rng(seed).integers(0, 256, (-(-height // 24), -(-width // 24), 3), np.uint8)
    return np.ascontiguousarray(np.kron(colours, np.ones((24, 24, 1), np.uint8))[:height, :width])


def pixels(photo: np.ndarray) -> Tensor:
    return pil_to_tensor(Image.fromarray(photo)).float() / 255


def opened(name: str, **fields: Any) -> NamedModel:
    return NamedModel(f"torchvision:{name}", **{"weights": "random:1", **fields}).opened()


@functools.cache
def detector(name: str, **fields: Any) -> Any:
    return opened(name, **fields).detector("cpu", "exact")


def backbone(name: str, **fields: Any) -> Any:
    return opened(name, **fields).backbone("cpu", "exact")


def saved(network: torch.nn.Module, folder: Path) -> str:
    torch.save(network.state_dict(), folder / "weights.pth")
    return str(folder / "weights.pth")


def gap(found: Tensor, wanted: Tensor) -> float:
    """Distance, as a share of the length."""
    return float((found - wanted).detach().norm() / wanted.detach().norm())


@pytest.mark.parametrize(
    "name, side",
    [(FASTER, 0), ("ssdlite320_mobilenet_v3_large", 0), pytest.param("fcos_resnet50_fpn", 160, marks=pytest.mark.slow)],
)
def test_a_detector_is_the_bare_one_without_background_and_placeholders(name: str, side: int, tmp_path: Path) -> None:
    model = opened(name, weights=saved(detector(name)._network, tmp_path), longest_side=side)
    sides = {"min_size": side, "max_size": side} if side else {}
    bare = get_model(name, weights=None, weights_backbone=None, **sides).eval()
    bare.load_state_dict(torch.load(model.weights, weights_only=True))
    photo = picture(120, 200)
    ours = model.detector("cpu", "exact")
    with arithmetic(CPU, "exact"):
        (wanted,) = bare([pixels(photo)])
        found = ours(photo)
    categories = get_model_weights(name).DEFAULT.meta["categories"]
    named = [
        at for at, label in enumerate(wanted["labels"].tolist()) if categories[label] not in ("N/A", "__background__")
    ]
    assert len(named) > 4 and (name != FASTER or len(named) < len(wanted["labels"]))
    assert torch.equal(found.boxes, wanted["boxes"][named]) and torch.equal(found.scores, wanted["scores"][named])
    names = model.names()
    assert names is not None and len(names) == ours.num_classes == 80
    assert [names[at] for at in found.class_ids] == [categories[label] for label in wanted["labels"][named]]
    assert found.boxes[:, 2].max() > 150  # pixels of the photo


@pytest.mark.slow
def test_a_detector_with_frozen_norms_is_torchvisions_with_its_default_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its builder freezes norms, and sets their epsilon, only for trained weights; such files count no batches.
    name = "fasterrcnn_resnet50_fpn"
    state = {
        entry: value for entry, value in detector(name)._network.state_dict().items() if "num_batches" not in entry
    }
    state["backbone.body.conv1.weight"] *= 0.01
    state["backbone.body.bn1.running_var"] *= 1e-4  # an epsilon of 1e-5 is seen
    torch.save(state, tmp_path / "trained.pth")
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda self, **options: dict(state))
    bare = get_model(name, weights="DEFAULT", min_size=160, max_size=160).eval()
    photo = picture(100, 160)
    with arithmetic(CPU, "exact"):
        (wanted,) = bare([pixels(photo)])
        found = detector(name, weights=str(tmp_path / "trained.pth"), longest_side=160)(photo)
    assert len(found.boxes) > 10
    assert set(map(tuple, found.boxes.tolist())) <= set(map(tuple, wanted["boxes"].tolist()))


@pytest.mark.slow
def test_vectors_are_those_of_the_box_head_at_the_final_boxes_and_odds_those_of_their_proposals() -> None:
    ours = detector(FASTER)
    photo, network = picture(160, 240), ours._network
    seen: list[Any] = []
    hook = network.roi_heads.box_predictor.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with arithmetic(CPU, "exact"):
        found = ours(photo)
        own = found.vectors(torch.arange(len(found.boxes)))
        hook.remove()
        images, _ = network.transform([pixels(photo)])
        maps = network.backbone(images.tensors)
        boxes = resize_boxes(found.boxes, photo.shape[:2], images.image_sizes[0])
        vectors = network.roi_heads.box_head(network.roi_heads.box_roi_pool(maps, [boxes], images.image_sizes))
        described = ours.describe_boxes(photo, found.boxes)
    torch.testing.assert_close(own, vectors, rtol=1e-4, atol=1e-4)
    policy = replace(SELECTIONS[DETECTIONS], max_regions=11)  # vectors are made for the kept alone, in their order
    (regions,) = ModelDetector(ours, policy, device="cpu", mode="exact")([photo[:, :, ::-1]])
    kept = vectors[regions.proposal_ids]
    torch.testing.assert_close(torch.from_numpy(regions.features), kept, rtol=1e-4, atol=1e-4)
    assert len(kept) == 11 < len(vectors)
    torch.testing.assert_close(described.vectors, vectors, rtol=1e-5, atol=1e-5)
    rows = torch.arange(len(found.scores))
    assert torch.equal(found.probabilities[rows, found.class_ids], found.scores)
    # A whole row of the head's softmax, background last, with the eleven outputs that are no class.
    odds = seen[0][0].softmax(-1)
    others = [label for label in range(91) if label not in ours._labels]
    wanted = torch.cat([odds[:, ours._labels], odds[:, others].sum(1, keepdim=True)], 1)
    assert all((wanted == row).all(dim=1).any() for row in found.probabilities)
    assert len(others) == 11 and found.probabilities.shape[1] == 81
    assert torch.equal(described.scores, described.probabilities[:, :-1].max(1).values)


def test_a_narrow_photo_changes_nothing_for_the_photos_after_it(tmp_path: Path) -> None:
    # The library's pooler keeps the scales that it guessed for the first photo.
    model = opened(FASTER, weights=saved(detector(FASTER)._network, tmp_path))
    first, second = (model.detector("cpu", "exact") for _ in range(2))
    photo, box = picture(160, 240), torch.tensor([[20.0, 30.0, 180.0, 140.0]])
    with arithmetic(CPU, "exact"):
        first(picture(8, 600))
        assert torch.equal(first.describe_boxes(photo, box).vectors, second.describe_boxes(photo, box).vectors)


def test_a_photo_twice_as_large_has_the_same_boxes() -> None:
    ours, photo = detector("ssdlite320_mobilenet_v3_large"), picture(320, 320)
    twice = np.ascontiguousarray(photo.repeat(2, axis=0).repeat(2, axis=1))
    boxes = torch.tensor([[48.0, 72.0, 192.0, 240.0]])
    with arithmetic(CPU, "exact"):
        small, large = ours(photo), ours(twice)
        assert abs(small.boxes[:5] * 2 - large.boxes[:5]).max() < 6  # 1 % of 640
        head = detector(FASTER, longest_side=320)
        one, two = head.describe_boxes(photo, boxes), head.describe_boxes(twice, 2 * boxes)
    assert torch.cosine_similarity(one.vectors, two.vectors).item() > 0.98


def test_bf16_leaves_coordinates_in_float32() -> None:
    with arithmetic(CPU, "bf16"):
        boxes = detector(FASTER)(picture(160, 240)).boxes
    assert not torch.equal(boxes, boxes.bfloat16().float())


@pytest.mark.parametrize(
    "classes, own, names", [(3, None, None), (3, ("cat", "dog"), ("cat", "dog")), (91, None, "coco")]
)
def test_the_number_of_classes_is_that_of_the_file(classes: int, own: Any, names: Any, tmp_path: Path) -> None:
    network = get_model(FASTER, weights=None, weights_backbone=None, num_classes=classes)
    model = opened(FASTER, weights=saved(network, tmp_path), class_names=own)
    found = model.names()
    assert found == names if names != "coco" else found is not None and found[:2] == ("person", "bicycle")
    assert model.detector("cpu", "exact").num_classes == (80 if classes == 91 else 2)
    with pytest.raises(ValueError, match="4 class names for a network of"):
        replace(model, class_names=("a", "b", "c", "d")).detector("cpu", "exact")


LAYERS = [
    ("resnet18@layer3", "bilinear"),
    ("efficientnet_b0@features.4", "bicubic"),
    ("swin_t@features.3", "bicubic"),  # (n, h, w, c)
    ("inception_v3@Mixed_5d", "bilinear"),  # transforms its input again, and pads nothing at first
    ("resnet18@avgpool", "bilinear"),
    ("vit_b_32@encoder", "bilinear"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, resample", LAYERS)
def test_a_crop_gives_what_the_bare_network_gives_for_it(name: str, resample: str, tmp_path: Path) -> None:
    target, layer = name.split("@")
    arguments = {"transform_input": True, "init_weights": False} if "inception" in name else {}
    torch.manual_seed(0)
    bare = get_model(target, weights=None, **arguments).eval()
    ours = backbone(name, weights=saved(bare, tmp_path))
    transforms = get_model_weights(target).DEFAULT.transforms()
    transforms.resize_size = transforms.crop_size  # nothing is cut off
    side = transforms.crop_size[0]
    crop = picture(90, 140)
    square = Image.fromarray(crop).resize((side, side), Image.Resampling[resample.upper()])
    with arithmetic(CPU, "exact"):
        (found,) = ours.crop_vectors([crop])
        values = create_feature_extractor(bare, [layer], suppress_diff_warning=True)(transforms(square)[None])[layer][0]
    if name == "vit_b_32@encoder":
        values = values[1:].mean(0)  # 49 and the class token
    elif values.ndim == 3 and ours.pools == ("roi", "crop"):
        values = values.mean((0, 1) if "swin" in name else (1, 2))
    assert gap(found, values.flatten()) < 1e-5
    assert ours.feature_dim == len(found) and ("roi" in ours.pools) == (layer != "avgpool")
    assert gap(ours.crop_vectors([picture(90, 140, seed=1)])[0], found) > 1e-3  # it sees the crop


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, cells", [("resnet18@layer2", 8), ("inception_v3@Mixed_5b", 8), ("swin_t@features.0", 4)]
)
def test_a_box_moved_with_its_content_has_the_same_vector(name: str, cells: int) -> None:
    # The width of 396 is no multiple of the stride: the width of the map over that of the photo would be wrong.
    with arithmetic(CPU, "exact"):
        describe = RegionBackbone(backbone(name, longest_side=396), "roi", name)
        vectors = []
        for across, down in ((96, 96), (96 + 13 * cells, 96 + 5 * cells)):
            photo = np.full((330, 396, 3), 90, np.uint8)
            photo[down : down + 64, across : across + 80] = picture(64, 80)
            vectors.append(describe(photo, torch.tensor([[across, down, across + 80.0, down + 64.0]])))
            nearby = describe(photo, torch.tensor([[across + 8.0, down, across + 88.0, down + 64.0]]))
    assert gap(vectors[1], vectors[0]) < 1e-4 and gap(nearby, vectors[1]) > 5e-3


def test_a_map_shows_content_where_the_photo_has_it() -> None:
    # Channels last, class token, and a scale for each axis would each move it.
    for name in ("vit_b_32@encoder", "swin_t@features.1", "resnet18@layer2"):
        ours = backbone(name)
        plain, marked = (np.full((200, 800, 3), 90, np.uint8) for _ in range(2))
        marked[100:150, 600:700] = 255
        with arithmetic(CPU, "exact"):
            one, two = ours.feature_map(plain), ours.feature_map(marked)
            change = (one.values - two.values).abs().sum(1)[0]
        row, column = divmod(int(change.argmax()), change.shape[1])
        left, top, right, bottom = one.cells_of(torch.tensor([[600.0, 100.0, 700.0, 150.0]]))[0].tolist()
        assert left - 1 <= column < right + 1 and top - 1 <= row < bottom + 1, name
        assert one.values.shape[1] == ours.feature_dim


@pytest.mark.slow
def test_positions_of_a_vit_are_brought_to_another_size_by_torchvisions_rule(tmp_path: Path) -> None:
    ours = backbone("vit_b_32@encoder", longest_side=160, weights=saved(get_model("vit_b_32", weights=None), tmp_path))
    state = torch.load(tmp_path / "weights.pth", weights_only=True)
    bare = get_model("vit_b_32", weights=None, image_size=160).eval()
    bare.load_state_dict(interpolate_embeddings(160, 32, state))
    photo = picture(160, 160)
    with arithmetic(CPU, "exact"):
        found = ours.feature_map(photo)
        tokens = create_feature_extractor(bare, ["encoder"])((pixels(photo) - ours._mean)[None] / ours._std)["encoder"]
    assert found.values.shape == (1, 64, 5, 5) and gap(found.values.flatten(2)[0].T, tokens[0, 1:]) < 1e-5
    with pytest.raises(ValueError, match="longest_side 170 is no multiple of its patch, 32"):
        backbone("vit_b_32@encoder", longest_side=170)


@pytest.mark.slow
def test_what_decides_a_vector_is_described() -> None:
    ours = RegionBackbone(backbone("inception_v3@Mixed_7c", longest_side=640), "roi", "inception")
    described = ours.describe()
    assert len(described.pop("weights")) == 64
    assert described == {
        "backbone": "torchvision:inception_v3@Mixed_7c",
        "input": {"longest_side": 640},
        "pixels": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "resize": "Pillow bilinear"},
        "coordinates": {"stride": 32, "offset": -1.0},
        "pool": "roi",
        "cells": 7,
    }
    assert ours.network.describe("crop")["input"] == {"square": 640}
    assert detector(FASTER, longest_side=320).describe()["input"] == {"shortest_side": 320, "longest_side": 320}


def test_random_weights_are_those_of_their_seed() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (
        opened(FASTER, weights=f"random:{seed}").detector("cpu", "exact").describe() for seed in (1, 1, 2)
    )
    assert one == same and one["weights"] != other["weights"]
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "name, fields, words",
    [
        ("fasterrcnn_resnet50_fpm", {}, "of that name; did you mean fasterrcnn_resnet50_fpn"),
        (FASTER, {"weights": ""}, "default .*, FILE, or random:SEED"),
        (FASTER, {"queries": ("a cat",)}, "takes no queries"),
        (f"{FASTER}@backbone", {}, "a detector takes no layer"),
        (FASTER, {"weights": "random:x"}, "whole number"),
        ("resnet18", {}, "write torchvision:resnet18@layer4; it has conv1, .*layer1"),
        ("resnet18@layer9", {}, "has no layer 'layer9'; write torchvision:resnet18@layer4"),
        ("vit_b_32", {}, "write torchvision:vit_b_32@encoder; it has conv_proj, "),
        ("vit_b_32@getattr", {}, "gives no tensor"),
        ("vit_b_32@reshape", {}, r"gives \(64, 49\), which is no map"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_a_line(name: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        opened(name, **fields)
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_are_refused_in_a_line(tmp_path: Path) -> None:
    state = get_model("squeezenet1_1", weights=None).state_dict()
    first, *_ = state
    for change, words in (
        ({first: None}, f"Missing key.*{first}"),
        ({"extra": torch.zeros(1)}, "Unexpected key.*extra"),
        ({first: torch.zeros(2, 2)}, f"size mismatch for {first}"),
        ({first: torch.full_like(state[first], torch.nan)}, f"{first} has NaN"),
        ({"classifier.1.weight": torch.zeros(10**6, 1, 1, 1)}, "size mismatch"),  # asks for two gigabytes
    ):
        torch.save({n: v for n, v in {**state, **change}.items() if v is not None}, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=words) as caught:
            backbone("squeezenet1_1@features", weights=str(tmp_path / "w.pth"))
        assert "\n" not in str(caught.value)


def test_the_older_names_of_torchvisions_own_densenet_load(tmp_path: Path) -> None:
    with torch.device("meta"):
        names = get_model("densenet121", weights=None).state_dict()
    old = {name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): torch.zeros(1) for name in names}
    torch.save(old, tmp_path / "old.pth")
    model = NamedModel("torchvision:densenet121@relu", str(tmp_path / "old.pth"))
    assert old.keys() != names.keys() == torchvision_models._file_tensors(model).keys()


@pytest.mark.slow
# A file that wants the version of its layout; a network that is not built without numbers.
@pytest.mark.parametrize("name", ["mnasnet0_5@layers", "regnet_y_400mf@trunk_output"])
def test_every_tensor_of_a_file_is_loaded(name: str, tmp_path: Path) -> None:
    bare = get_model(name.split("@")[0], weights=None)
    ours = backbone(name, weights=saved(bare, tmp_path))
    mine = ours._network.state_dict()
    assert mine and all(torch.equal(value, bare.state_dict()[entry]) for entry, value in mine.items())


def test_default_weights_are_fetched_once_and_their_hash_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(get_model("squeezenet1_1", weights=None), tmp_path)
    asked = []
    monkeypatch.setattr(torchvision_models, "fetch_weights", lambda spec: asked.append(spec) or Path(path))
    with pytest.raises(ValueError, match="torchvision names b8a52dc0; remove"):
        opened("squeezenet1_1@features", weights="default")
    assert asked == ["https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth"]
