"""Weight files as named tensors, in any container (sources.py); nothing in a file is executed.

A `.caffemodel`, the weights of the original bottom-up-attention release, is a protocol buffer, `NetParameter` of
BVLC/caffe src/caffe/proto/caffe.proto; only the few fields that hold weights are described here. Names become
`<layer>.<tensor>`: `res2a_branch1.weight`, `bn2a_branch1.running_mean`, `scale2a_branch1.weight`; families.py
identifies them.
"""

from __future__ import annotations

import functools
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.network.state import renamed
from roibeam.extraction.weights.sources import container_of
from roibeam.features.pickle_values import UnsafePickleError
from roibeam.features.safe_pickle import load_pickle
from roibeam.messages import first_line, printable

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
        ValueError: one line, if the file is no such network, is damaged, of Caffe's first format, or has a layer
            with other weights than its kind has.
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
        if len(sides) > _MAX_SIDES:  # before each is processed: a file may name millions
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


# Keys of the weights in files of training programs: detectron2 and MILVLG, most others, Detectron 1, the multi-task
# ViLBERT's files to resume from.
_MOST_SHARED = 8  # times that the bytes of a file may be in tensors: some share their numbers
_INNER_DICTS = ("model", "state_dict", "blobs", "model_state_dict")


def read_tensors(path: Path) -> dict[str, object]:
    """The named values of a weight file.

    Returns:
        name -> tensor on the CPU (or any other value of the file, for `check_state`).
    Raises:
        ValueError: one line, if the file is of no known kind, is cut off, or would run code.
    """
    container = container_of(path)
    if container == "caffe":
        return dict(read_caffemodel(path))
    if container == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path, device="cpu"))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"weights {path}: not a complete safetensors file: {printable(first_line(error), 300)}"
            ) from None
    content = _read_torch(path) if container == "torch" else _read_pickle(path)
    for name in _INNER_DICTS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        raise ValueError(f"weights {path}: holds a {type(content).__name__}; a dict of name -> tensor is wanted")
    # A key may be anything that a pickle can hold: 1 and "1" are one name here.
    tensors = renamed(content, str, f"weights {path}")
    _check_sizes(tensors, path)
    return {name: _as_tensor(value) for name, value in tensors.items()}


def _read_torch(path: Path) -> object:
    try:
        _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"weights {path}: {_refusal(error)}") from None
    except Exception as error:  # a damaged file makes torch's parsers raise almost anything
        raise ValueError(f"weights {path}: not a complete torch file: {printable(first_line(error), 300)}") from None


def _check_archive(path: Path) -> None:
    """Refuses an archive that unpacks to more than its size: torch itself packs nothing."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError(f"its entries unpack to {unpacked:,} bytes, more than the file has")


def _read_pickle(path: Path) -> object:
    try:
        return load_pickle(path)
    except UnsafePickleError as error:
        raise ValueError(f"weights {error}") from None


def _check_sizes(tensors: Mapping[str, object], path: Path) -> None:
    """Raises ValueError for tensors that hold more numbers than the file, such as one number that is expanded."""
    total, there = 0, path.stat().st_size
    for value in tensors.values():
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta:
            total += value.numel() * value.element_size()
    if total > _MOST_SHARED * there:
        raise ValueError(
            f"weights {path}: its tensors have {total:,} bytes, the file {there:,}: numbers stand for many; save the "
            f"tensors with all their numbers"
        )


def _as_tensor(value: object) -> object:
    """A numpy array as a tensor of its own memory; everything else unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return value
    return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=True))


def _refusal(error: Exception) -> str:
    # torch's message is a page of advice to switch the protection off; its one fact is the name it met.
    text = str(error)
    for marker in ("Unsupported global: GLOBAL ", "GLOBAL "):
        if marker in text:
            name = printable(text.partition(marker)[2].split()[0].strip("`,."))
            return f"wants to run {name} when it is read; refused. Save plain tensors (safetensors) instead"
    return "not a torch file of plain tensors, or it is damaged; nothing in it was run"
