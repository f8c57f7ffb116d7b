"""Caffe's files, written here byte by byte, so that reading is not checked against itself."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from small_networks import TINY
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import random_state
from roibeam.extraction.weights.families import name_tables
from roibeam.extraction.weights.files import read_caffemodel
from roibeam.extraction.weights.loading import load_weights

HEAD = "roi_heads.box_predictor."
State = dict[str, Tensor]


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def message(number: int, content: bytes) -> bytes:
    """A field of bytes, text, packed numbers or another message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def blob(values: np.ndarray, *, legacy: bool = False) -> bytes:
    data = message(5, values.astype("<f4").tobytes())
    if legacy:
        sides = (1,) * (4 - values.ndim) + values.shape
        return b"".join(integer(i + 1, side) for i, side in enumerate(sides)) + data
    return data + message(7, message(1, b"".join(map(varint, values.shape))))


def layer(name: str, kind: str, *blobs: bytes) -> bytes:
    content = message(1, name.encode()) + message(2, kind.encode()) + message(3, b"data") + integer(10, 1)
    return message(100, content + b"".join(message(7, one) for one in blobs))


def network(state: State, *, factor: float = 1.0, legacy: bool = False) -> bytes:
    """A .caffemodel of weights in Hugging Face names and Caffe's layout."""
    names = {}
    for caffe, ours in name_tables()["caffe"].items():
        names.setdefault(ours, caffe)
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for ours, tensor in state.items():
        name, _, kind = names[ours].rpartition(".")
        arrays.setdefault(name, {})[kind] = tensor.numpy()
    content = message(1, b"ResNet-101") + layer("input", "Python") + layer("pool1", "Pooling")
    for name, found in arrays.items():
        if "running_mean" in found:
            statistics = (found["running_mean"] * np.float32(factor), found["running_var"] * np.float32(factor))
            blobs = [blob(values, legacy=legacy) for values in (*statistics, np.float32([factor]))]
            content += layer(name, "BatchNorm", *blobs)
            continue
        kind = {4: "Convolution", 2: "InnerProduct", 1: "Scale"}[found["weight"].ndim]
        kind = "Embed" if name == "cls_embedding" else kind
        blobs = [blob(found[part], legacy=legacy) for part in ("weight", "bias") if part in found]
        content += layer(name, kind, *blobs)
    return content


@pytest.fixture(scope="module")
def state() -> State:
    """A network in Caffe's layout, drawn without regard to any other."""
    shapes = {name: tuple(tensor.shape) for name, tensor in Detector(TINY, CONVENTIONS["caffe"]).state_dict().items()}
    return random_state(shapes, seed=5)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_network_loads_as_it_is_into_its_own_conventions(tmp_path: Path, state: State, legacy: bool) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(network(state, legacy=legacy))
    detector = Detector(TINY, CONVENTIONS["caffe"])
    load_weights(str(path), detector)
    found = detector.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_a_network_loads_into_hugging_face_conventions_with_its_own_anchors(tmp_path: Path, state: State) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(network(state, factor=4.0))  # a power of two divides exactly
    detector = Detector(TINY, CONVENTIONS["hf"])
    load_weights(str(path), detector)
    found = detector.state_dict()
    assert torch.equal(found[f"{HEAD}cls_score.bias"], state[f"{HEAD}cls_score.bias"].roll(-1))
    scale = torch.tensor([10.0, 10, 5, 5]).repeat(3)
    assert torch.equal(found[f"{HEAD}bbox_pred.bias"], state[f"{HEAD}bbox_pred.bias"][4:] * scale)
    name = "backbone.res3.0.conv2.norm.running_var"
    assert torch.equal(found[name], state[name])
    # 92 x 48 around (8, 8): lib/rpn/generate_anchors.py's [-38, -16, 53, 31] with the last pixel inside.
    assert detector.proposal_generator.cell_anchors[0].tolist() == [-38, -16, 54, 32]  # type: ignore[index]


CONV = blob(np.ones((2, 3, 1, 1)))
VECTOR = blob(np.ones(2))


MANY_SIDES = message(7, message(1, b"\x01" * 2_000_000))


@pytest.mark.parametrize(
    "content, words",
    [
        (layer("a", "Convolution", message(5, bytes(4)) + MANY_SIDES), "a shape of 2,000,000 sides; at most 4"),
        (b"", "holds no layer with weights"),
        (layer("a", "ReLU"), "holds no layer with weights"),
        (b"\xff\xff\xff", "not a complete .caffemodel"),
        (b"<html>not found</html>", "not a complete .caffemodel|holds no layer"),
        (message(2, message(4, b"conv1")), "Caffe's first layer format"),
        (layer("a", "LSTM", VECTOR), "layer 'a' is of type 'LSTM' and has weights"),
        (layer("a", "BatchNorm", VECTOR, VECTOR), "has 2 blobs, expected 3"),
        (layer("a", "Convolution", CONV, VECTOR, VECTOR), "has 3 blobs, expected 1 or 2"),
        (layer("a", "BatchNorm", VECTOR, VECTOR, blob(np.zeros(1))), "has the factor [0.0]"),
        (layer("a", "BatchNorm", VECTOR, VECTOR, blob(np.float32([np.nan]))), "has the factor [nan]"),
        (layer("a", "Convolution", VECTOR), "blob weight: shape [2] with 2 numbers; 4 sides are expected"),
        (layer("a", "Convolution", message(5, b"abc") + CONV), "is not a list of float32"),
        (layer("a", "Scale", message(8, bytes(8))), "is not a list of float32"),
        (layer("a", "Scale", message(5, bytes(8)) + message(7, message(1, varint(3)))), "shape [3] with 2 numbers"),
        (
            layer("a", "Convolution", message(5, bytes(8)) + message(7, message(1, varint(2**62) * 4))),
            "with 2 numbers; 4 sides",
        ),
        (layer("a", "Scale", message(5, b"") + message(7, message(1, varint(0)))), "shape [0] with 0 numbers"),
        (layer("a", "Convolution", CONV) * 2, "has two layers named 'a'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_caffemodel(path)
    assert any(part in str(error.value) for part in words.split("|")), str(error.value)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_layer_that_the_network_does_not_have_is_listed(tmp_path: Path, state: State) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(network(state) + layer("conv_new", "Convolution", CONV))
    with pytest.raises(ValueError, match=r"1 extra: conv_new\.weight \(2, 3, 1, 1\)"):
        load_weights(str(path), Detector(TINY))


def test_damage_gives_weights_or_one_error(tmp_path: Path) -> None:
    content = layer("a", "Convolution", CONV, VECTOR) + layer("b", "BatchNorm", VECTOR, VECTOR, blob(np.ones(1)))
    chance, path, refused = random.Random(0), tmp_path / "a.caffemodel", 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.randint(1, len(damaged))] if chance.random() < 0.3 else damaged)
        try:
            found = read_caffemodel(path)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert sum(tensor.numel() for tensor in found.values()) <= 13
    assert refused > 100
