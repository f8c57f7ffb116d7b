"""The global feature: equal to torchvision's network on torchvision's own transforms, from any form of its file."""

import functools
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from small_files import Hostile
from torch import Tensor, nn
from torchvision.transforms import functional as transforms

from roibeam.extraction.global_feature import GlobalFeature, build_global_feature
from roibeam.extraction.network.config import GLOBAL_NETWORKS

QUICK = ("densenet121", "resnet18", "googlenet")
# Blocks of another kind (resnet50's bottlenecks) or another first layer (densenet161's); the rest have more of them.
SLOW = ("resnet50", "densenet161")
MORE = [pytest.mark.slow, pytest.mark.soak(cases=True)]
NETWORKS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow if name in SLOW else MORE)
    for name in GLOBAL_NETWORKS
]


@pytest.fixture
def image() -> np.ndarray:
    """(300, 500, 3) uint8 B, G, R: another picture in each channel, noise in all, larger than a network's input."""
    ramp = np.linspace(0, 255, 300 * 500).reshape(300, 500)
    smooth = np.stack([ramp, 255 - ramp, np.minimum(ramp * 2, 255)], axis=2)
    noise = np.random.default_rng(0).integers(0, 256, smooth.shape)
    return ((smooth + noise) / 2).astype(np.uint8)


@pytest.fixture(scope="module")
def resnet18() -> GlobalFeature:
    torch.set_num_threads(1)  # threads waiting for each other cost more than they give
    return build_global_feature("resnet18=random:1")


@functools.cache
def torchvision_network(name: str) -> nn.Module:
    """As torchvision publishes it, heads and all, with weights that keep signals in range and every number in use."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        googlenet = {"aux_logits": True, "transform_input": True, "init_weights": False}
        network = getattr(torchvision.models, name)(weights=None, **(googlenet if name == "googlenet" else {}))
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.weight, 0.9, 1.2)
                nn.init.normal_(module.bias, std=0.1)
        for name, weight in network.named_parameters():
            if re.match(r"layer\d\.\d+\.bn[23]\.weight", name):  # what ends a residual block is added to the rest
                weight.data *= 0.5
    return network.eval()


def old_densenet_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """norm1.weight -> norm.1.weight, as in the published densenet files."""
    return {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name): value for name, value in state.items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_feature_is_what_torchvision_feeds_its_classifier(name: str, image: np.ndarray, tmp_path: Path) -> None:
    network = torchvision_network(name)
    torch.save(old_densenet_names(network.state_dict()), tmp_path / "file.pth")
    feature = build_global_feature(f"{name}={tmp_path / 'file.pth'}")

    seen: list[Tensor] = []
    head = network.classifier if name.startswith("densenet") else network.fc
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    rgb = torch.from_numpy(image[:, :, ::-1].copy()).permute(2, 0, 1).float() / 255
    pixels = transforms.resize(rgb, [224, 224], antialias=True)
    with torch.inference_mode():
        network(transforms.normalize(pixels, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])[None])

    got = feature(image)
    assert got.shape == (feature.feature_dim,) == (GLOBAL_NETWORKS[name],) and got.dtype == np.float32
    # The same arithmetic but for the resize, which is done before or after the division by 255.
    np.testing.assert_allclose(got, seen[0][0].numpy(), rtol=1e-3, atol=1e-4 * float(np.abs(got).max()))
    assert got.std() > 0
    swapped = feature(np.ascontiguousarray(image[:, :, ::-1]))
    assert np.abs(swapped - got).max() > 0.01 * np.abs(got).max()


def test_heads_counters_and_containers_make_no_difference(tmp_path: Path, image: np.ndarray) -> None:
    state = torchvision_network("resnet18").state_dict()
    trunk = {name: value for name, value in state.items() if not re.search(r"^fc\.|num_batches_tracked$", name)}
    torch.save({"state_dict": trunk}, tmp_path / "trunk.pt")
    save_file(state, tmp_path / "whole.safetensors")
    features = [build_global_feature(f"resnet18={tmp_path / name}") for name in ("trunk.pt", "whole.safetensors")]
    assert features[0].describe() == features[1].describe()
    assert features[0](image).tobytes() == features[1](image).tobytes()


def test_describe_names_what_ran_in_plain_json(resnet18: GlobalFeature) -> None:
    first = resnet18.describe()
    assert json.loads(json.dumps(first)) == first
    assert (first["network"], first["feature_dim"]) == ("resnet18", 512)
    # The recipe must give the same weights on every machine, or workers of one run would disagree.
    assert first["weights"] == "1a8b457f18bdc31db0c82d1661986b6526441167ade1d6f5907e72c2363fd6f8"
    assert build_global_feature("resnet18=random:2").describe()["weights"] != first["weights"]


# The deepest of each family, whose features would grow or vanish first.
@pytest.mark.parametrize(
    "name",
    ["googlenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("densenet201", "resnet34", "resnet152"))],
)
def test_random_weights_fit_float16_and_tell_pictures_apart(name: str, image: np.ndarray) -> None:
    feature = build_global_feature(f"{name}=random:3")
    one, other = feature(image), feature(255 - image[::-1])
    assert np.abs(one).max() < 6e4
    assert np.abs(one - other).max() > 0.05 * np.abs(one).max() > 0.005


def test_features_do_not_depend_on_company_or_the_global_generator(image: np.ndarray, resnet18: GlobalFeature) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    feature = build_global_feature("resnet18=random:1")
    alone = feature(image)
    assert torch.equal(torch.random.get_rng_state(), before)
    feature(image[:20])
    torch.manual_seed(6)
    assert feature(image).tobytes() == alone.tobytes()
    assert feature(np.asfortranarray(image)).tobytes() == alone.tobytes()
    assert resnet18(image).tobytes() == alone.tobytes()
    assert not any(module.training for module in feature.network.modules())


@pytest.mark.parametrize("image_hw", [(1, 1), (1, 3000), (2500, 2)])
def test_any_size_of_photo(image_hw: tuple[int, int], resnet18: GlobalFeature) -> None:
    grey = resnet18(np.full((*image_hw, 3), 90, np.uint8))
    # A grey photo is the same grey at any size, so its feature is too, up to the rounding of the resize.
    np.testing.assert_allclose(grey, resnet18(np.full((224, 224, 3), 90, np.uint8)), rtol=1e-3, atol=1e-4)


def test_what_is_no_photo_is_refused(resnet18: GlobalFeature) -> None:
    """By the check of the detector."""
    with pytest.raises(ValueError, match=r"\(4, 4, 3\) float32"):
        resnet18(np.zeros((4, 4, 3), np.float32))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("vgg16=random:1", "global feature 'vgg16=random:1': expected <network>=<weights file or random:seed>"),
        ("resnet18", "with a network of densenet121, densenet161"),
        ("resnet18=", "expected <network>="),
        ("resnet18=random:one", "the seed must be a whole number"),
        ("resnet18=/no/such.pth", "weights /no/such.pth: no such file"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        build_global_feature(spec)


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: without(state, "layer2.0.conv1.weight"), "1 missing: layer2.0.conv1.weight (128, 64, 3, 3)"),
        (lambda state: {**state, "layer9.weight": torch.zeros(3)}, "1 extra: layer9.weight (3,)"),
        (lambda state: {**state, "bn1.bias": torch.full((64,), torch.nan)}, "1 non-finite: bn1.bias (64,)"),
        (lambda state: {"fc.weight": state["fc.weight"]}, "0 weights, the network has"),
    ],
)
def test_a_file_that_is_not_exactly_the_networks_is_refused(
    spoil: Callable[[dict[str, Tensor]], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.pth"
    torch.save(spoil(torchvision_network("resnet18").state_dict()), path)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        build_global_feature(f"resnet18={path}")
    assert str(error.value).startswith(f"global feature resnet18={path}: ")
    assert str(error.value).endswith("; give torchvision's own state dict of resnet18")
    assert "detector" not in str(error.value) and "\n" not in str(error.value)


def test_one_weight_under_its_old_and_its_new_name_is_refused(tmp_path: Path) -> None:
    state = torchvision_network("densenet121").state_dict()
    torch.save({**state, **old_densenet_names(state)}, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"two names, .*denselayer1\.norm1\.weight and .*norm\.1\.weight; keep one"):
        build_global_feature(f"densenet121={tmp_path / 'file.pth'}")


def test_a_file_that_wants_to_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file.pth").write_bytes(pickle.dumps({"conv1.weight": Hostile(tmp_path / "canary")}))
    with pytest.raises(ValueError, match="weights"):
        build_global_feature(f"resnet18={tmp_path / 'file.pth'}")
    assert not (tmp_path / "canary").exists()
