"""Reads a `.caffemodel`: the weights of the original bottom-up-attention release, as named tensors.

The file is a protocol buffer, `NetParameter` of BVLC/caffe src/caffe/proto/caffe.proto; only the few fields that hold
weights are described here. Names become `<layer>.<tensor>`: `res2a_branch1.weight`, `bn2a_branch1.running_mean`,
`scale2a_branch1.weight`; families.py knows which is which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAX_SIDES = 4  # of a blob
MAX_BYTES = 2**31 - 1  # of one protocol buffer; the published file has about 250 MB

# Field number, name, kind; "+" means repeated. Messages in messages are read as bytes and parsed one at a time: a file
# of nothing but empty messages would otherwise become an object for each two bytes. Packed floats are bytes too.
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "NetParameter": ((2, "v1_layers", "+bytes"), (100, "layers", "+bytes")),
    "LayerParameter": ((1, "name", "bytes"), (2, "type", "bytes"), (7, "blobs", "+bytes")),
    "BlobProto": (
        (1, "num", "int32"),
        (2, "channels", "int32"),
        (3, "height", "int32"),
        (4, "width", "int32"),
        (5, "data", "+bytes"),
        (7, "shape", "bytes"),
        (8, "double_data", "+bytes"),
    ),
    "BlobShape": ((1, "sides", "+int64"),),
}
# Blobs of each kind of layer that has weights, and their number of dimensions.
_BLOBS: dict[str, tuple[tuple[str, int], ...]] = {
    "Convolution": (("weight", 4), ("bias", 1)),
    "InnerProduct": (("weight", 2), ("bias", 1)),
    "Embed": (("weight", 2),),
    "Scale": (("weight", 1), ("bias", 1)),
    "BatchNorm": (("running_mean", 1), ("running_var", 1), ("factor", 1)),
}


def read_caffemodel(path: Path) -> dict[str, Tensor]:
    """The weights of a Caffe network.

    A BatchNorm keeps sums: its mean and variance are divided by its third blob here. Layers without weights are left
    out.

    Returns:
        `<layer>.<tensor>` -> float32 tensor.
    Raises:
        ValueError: one line, when the file is no such network, is damaged, of Caffe's first format, or has a layer with
            other weights than its kind has.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"weights {path}: {path.stat().st_size:,} bytes; a .caffemodel has at most {MAX_BYTES:,}")
    net = _parse("NetParameter", path.read_bytes(), f"weights {path}")
    if net.v1_layers:
        raise ValueError(
            f"weights {path}: has Caffe's first layer format (`layers`); convert it with Caffe's "
            f"upgrade_net_proto_binary"
        )
    weights: dict[str, Tensor] = {}
    for raw in net.layers:
        layer = _parse("LayerParameter", raw, f"weights {path}")
        if not layer.blobs:
            continue
        name = layer.name.decode("utf-8", "replace")
        for tensor, values in _layer_tensors(layer, f"weights {path}: layer {name[:80]!r}").items():
            if f"{name}.{tensor}" in weights:
                raise ValueError(f"weights {path}: has two layers named {name[:80]!r}")
            weights[f"{name}.{tensor}"] = values
    if not weights:
        raise ValueError(f"weights {path}: holds no layer with weights; is it a .caffemodel of a trained network?")
    return weights


def _layer_tensors(layer: Any, where: str) -> dict[str, Tensor]:
    kind = layer.type.decode("utf-8", "replace")
    blobs = _BLOBS.get(kind)
    if blobs is None:
        raise ValueError(f"{where} is of type {kind[:40]!r} and has weights; known are {', '.join(_BLOBS)}")
    counts = (len(blobs),) if kind == "BatchNorm" else (1, len(blobs))
    if len(layer.blobs) not in counts:
        raise ValueError(f"{where} ({kind}) has {len(layer.blobs)} blobs, expected {' or '.join(map(str, counts))}")
    found = {
        name: _blob_values(raw, dimensions, f"{where}, blob {name}")
        for (name, dimensions), raw in zip(blobs, layer.blobs, strict=False)
    }
    if kind == "BatchNorm":
        factor = found.pop("factor")
        if factor.numel() != 1 or not float(factor) > 0:
            raise ValueError(f"{where} (BatchNorm) has the factor {factor.tolist()[:3]}; a positive number is expected")
        found = {name: values / factor for name, values in found.items()}
    return found


def _blob_values(raw: bytes, dimensions: int, where: str) -> Tensor:
    blob = _parse("BlobProto", raw, where)
    data = b"".join(blob.data)
    if blob.double_data or len(data) % 4:
        raise ValueError(f"{where}: is not a list of float32 numbers")
    if blob.HasField("shape"):
        sides = _parse("BlobShape", blob.shape, where).sides
        if len(sides) > _MAX_SIDES:  # before anything is done with each of them: a file may name millions
            raise ValueError(f"{where}: a shape of {len(sides):,} sides; at most {_MAX_SIDES} are expected")
        shape = list(sides)
    else:  # older Caffe writes four sides always
        shape = [blob.num, blob.channels, blob.height, blob.width]
    # A vector of n may be written as (1, 1, 1, n), a matrix as (1, 1, m, n).
    while len(shape) > dimensions and shape[0] == 1:
        del shape[0]
    values = np.frombuffer(data, "<f4")
    # Multiplied out in Python's integers: sides from a file may overflow.
    if len(shape) != dimensions or min(shape) < 1 or functools.reduce(lambda a, b: a * b, shape) != len(values):
        raise ValueError(f"{where}: shape {shape[:8]} with {len(values):,} numbers; {dimensions} sides are expected")
    return torch.from_numpy(values.reshape(shape).astype(np.float32))


def _parse(message: str, data: bytes, where: str) -> Any:
    from google.protobuf.message import DecodeError

    parsed = _message_class(message)()
    try:
        parsed.ParseFromString(data)
    except DecodeError:
        raise ValueError(f"{where}: not a complete .caffemodel, or damaged") from None
    return parsed


@functools.cache
def _message_class(name: str) -> Callable[[], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    kinds = {"bytes": field.TYPE_BYTES, "int32": field.TYPE_INT32, "int64": field.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="caffemodel.proto", package="caffemodel", syntax="proto2")
    for message, members in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, member, kind in members:
            label = field.LABEL_REPEATED if kind.startswith("+") else field.LABEL_OPTIONAL
            described.field.add(name=member, number=number, label=label, type=kinds[kind.removeprefix("+")])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"caffemodel.{name}"))
