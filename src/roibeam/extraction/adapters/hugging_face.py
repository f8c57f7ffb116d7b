"""Models of Hugging Face transformers: their files, their networks, and backbones of their vision networks.

A repository is JSON and tensors here. Its Python files are never fetched; what asks for code, for another repository or
for packages of quantization is refused; weights go through the reader of files.py. Networks are transformers' own.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.adapters.any_detector import FeatureMap
from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.regions import plain_json
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.extraction.weights.sources import hub_errors
from roibeam.messages import first_line, printable

_FETCHED = ("*.json", "*.txt", "*.model", "README.md", "model*.safetensors")
_MOST_JSON = 2**24  # bytes of a file of settings
_MOST_CARD = 2**20
_REFUSED = ("auto_map", "quantization_config", "fusion_config")
_COUNTS, _MOST_COUNTED = ("layers", "depth", "depths", "blocks", "repeats", "labels"), 2**16
_ATTENTION = (None, "eager", "sdpa")  # others are packages, or code of a hub
# Models whose `backbone` is a name in timm; of others, and with other signs, it is a repository or folder.
_WITH_TIMM = (
    *("timm_backbone", "detr", "conditional_detr", "deformable_detr", "dab-detr", "table-transformer", "omdet-turbo"),
)
_LICENSE = re.compile(r"^license(?:_name)?:(?:[ \t]*\[?|\s*\n- *)[\"']?([^\s\"'#\[\],-][^\s\"'#\[\],]*)", re.MULTILINE)
_PROBE = (256, 384)  # sides of the photo that tells strides
_CONVOLUTIONAL_SIDE = 800  # of photos in a network without positions
_MOST_SIDE, _MOST_CELLS = 8192, 2**17  # of a photo in a network
_OWN_SIZES = ("crop_pct", "max_num_patches")  # settings of processors that cut photos, or choose a size by themselves
_PIXEL_NUMBERS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "resample")
_RARE_NUMBERS = ("rescale_offset", "include_top", "do_flip_channel_order")
# Of config.json: what does not decide the numbers, or stands elsewhere.
_NO_SETTINGS = (
    *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "id2label", "label2id"),
)
# Numbers and modules of a network beside those that its file gives reason for.
_SHARED, _SPARE_NUMBERS, _SPARE_MODULES, _MODULES_A_TENSOR = 8, 2**26, 2000, 16


def open_model(model: NamedModel) -> NamedModel:
    """A local folder as it is; a repository, fetched once, with its commit. The card's license is read.

    Raises:
        ValueError: if there is no such repository or model, or if it wants to run code of its own.
        OSError: if the hub cannot be reached and its cache does not have the files.
    """
    local = Path(model.target).expanduser()
    if not local.is_dir() and model.target.startswith((".", "/", "~")):
        raise ValueError(f"{model.name}: there is no folder {local}; name one, or a repository as hf:<owner>/<name>")
    revision = model.revision or model.name.partition("#")[0].partition("@")[2]
    folder = local.absolute() if local.is_dir() else _fetched(model, revision)
    opened = replace(model, folder=str(folder), revision="" if local.is_dir() else folder.name)
    read_config(opened)
    weight_files(opened)
    return replace(opened, license=_license(folder / "README.md"))


def _fetched(model: NamedModel, revision: str) -> Path:
    from huggingface_hub import errors, snapshot_download

    spec = f"hf:{model.target}" + (f"@{revision}" if revision else "")
    options: dict[str, Any] = {"revision": revision or None, "ignore_patterns": "*/*"}

    def fetch(*more: str) -> Path:
        return Path(snapshot_download(model.target, allow_patterns=[*_FETCHED, *more], **options))

    try:
        with hub_errors(spec):
            folder = fetch()
            return folder if any(folder.glob("model*.safetensors")) else fetch("pytorch_model*.bin")
    except (errors.LocalEntryNotFoundError, errors.EntryNotFoundError):
        words = "fetch it on a machine with network, or name a local folder"
        raise OSError(f"{spec}: the hub cannot be reached and its cache does not hold it; {words}") from None


def model_folder(model: NamedModel) -> Path:
    """Folder of an opened model's files; a repository is fetched again on a machine that lacks it."""
    folder = Path(model.folder)
    if folder.is_dir():
        return folder
    if not model.revision:
        raise ValueError(f"{model.name}: there is no folder {folder} on this machine; workers need it at the same path")
    return _fetched(model, model.revision)


def _license(card: Path) -> str:
    if not card.is_file():
        return ""
    with card.open("rb") as file:
        text = file.read(_MOST_CARD).decode("utf-8", "replace")
    found = _LICENSE.findall(text.split("\n---", 1)[0]) if text.startswith("---") else []
    return printable(" ".join(each for each in found if each != "other") or " ".join(found))


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The settings in a JSON file of a model.

    Args:
        name: of the model, for errors.
    Raises:
        ValueError: if it is no such file, or asks for code, packages or another repository.
    """
    where = f"{name}: {path.name}"
    if not path.is_file() or path.stat().st_size > _MOST_JSON:
        raise ValueError(f"{where}: expected a JSON file of settings of at most {_MOST_JSON:,} bytes")
    try:
        content = json.loads(path.read_bytes())
        refused = next(_refused(content), None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is no JSON: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(content).__name__}")
    if refused is not None:
        reason = "it wants code or weights from elsewhere, or millions"
        raise ValueError(f"{where}: {printable(refused)} is refused: {reason}")
    return content


def _refused(content: Any) -> Iterator[str]:
    """Settings at any depth that fetch or run something, or let transformers count far before anything is checked."""
    if not isinstance(content, dict):
        for value in content if isinstance(content, list) else ():
            yield from _refused(value)
        return
    known = content.get("backbone_config") or content.get("model_type") in _WITH_TIMM
    for key, value in content.items():
        counted = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int | float)]
        if (
            (key in _REFUSED and value)
            or (key.endswith(("attn_implementation", "_implementation_internal")) and value not in _ATTENTION)
            or (key == "backbone" and isinstance(value, str) and not (known and re.fullmatch(r"[\w.]+", value)))
            or (key == "model_type" and value == "timm_wrapper")  # its settings go to timm, paths among them
            or (key.endswith(_COUNTS) and max(counted, default=0) > _MOST_COUNTED)
        ):
            yield f"{key} {json.dumps(value)}"
        yield from _refused(value)


def read_config(model: NamedModel) -> Any:
    """The `PreTrainedConfig` of an opened model; every file of settings beside it was checked.

    Raises:
        ValueError: if transformers knows no such model, or the repository wants to run code.
    """
    from transformers import CONFIG_MAPPING

    folder = model_folder(model)
    for path in sorted(folder.glob("*config.json")):
        read_json(path, model.name)
    settings = read_json(folder / "config.json", model.name)
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"{model.name}: its model_type {printable(repr(kind))} is none that transformers knows")
    name, more = settings.get("backbone"), settings.get("backbone_kwargs")
    with inside_transformers(model):
        if isinstance(name, str) and not settings.get("backbone_config"):  # transformers might ask the hub for it
            settings["use_timm_backbone"] = True
            if more:
                settings["backbone_config"] = {**more, "model_type": "timm_backbone", "backbone": name}
        config = CONFIG_MAPPING[kind].from_dict(settings)
        backbone = getattr(config, "backbone_config", None)
        if getattr(backbone, "model_type", "") == "timm_backbone" and find_spec("timm") is None:
            words = "pip install 'roibeam[timm]', or name a revision without it (of facebook/detr-*: @no_timm)"
            raise ValueError(f"{model.name}: its backbone is one of timm, which is not installed: {words}")
        return config


@contextmanager
def inside_transformers(model: NamedModel) -> Iterator[None]:
    """Gives errors one line, as settings of a stranger raise almost anything, and shows no bars and reports: what they
    tell is checked here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or str(error).startswith(model.name):
            raise
        reason = f"{type(error).__name__}: {printable(first_line(error), 300)}"
        raise ValueError(f"{model.name}: its settings make no network that runs: {reason}") from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def weight_files(model: NamedModel) -> list[Path]:
    """The files of an opened model's weights: safetensors, or else .bin; one, or those of an index."""
    folder = model_folder(model)
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            names = read_json(index, model.name).get("weight_map")
            shards = sorted({str(each) for each in names.values()}) if isinstance(names, dict) else []
            for shard in shards:
                if not re.fullmatch(r"[\w][\w.-]*\.(safetensors|bin)", shard) or not (folder / shard).is_file():
                    raise ValueError(f"{model.name}: {index.name} names {printable(shard)!r}; it is no file beside it")
            if shards:
                return [folder / shard for shard in shards]
    raise ValueError(f"{model.name}: has no weights; expected model.safetensors or pytorch_model.bin in its folder")


def read_weights(model: NamedModel) -> dict[str, Tensor]:
    """All tensors of an opened model's files, by the names that stand there."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(model):
        for name, value in read_tensors(path).items():
            if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
                raise ValueError(f"weights {path}: {printable(name)} is no plain tensor")
            if name in weights:
                raise ValueError(f"weights {path}: {printable(name)} stands in another file of the index too")
            weights[name] = value
    return weights


def load_network(model: NamedModel, auto_class: Any, device: str, *, unused: tuple[str, ...] = ()) -> Any:
    """The network of an opened model in float32, for evaluation.

    Args:
        auto_class: of transformers, such as `AutoModel`; it chooses the class.
        unused: parts of the network that it goes without where their weights are missing.
    Raises:
        ValueError: if a weight is missing or of another shape; if the settings are of a network far beyond the weights.
    """
    config = read_config(model)
    if type(config) not in auto_class._model_mapping:
        raise ValueError(f"{model.name}: a {config.model_type} is no model for {auto_class.__name__}")
    weights = read_weights(model)
    kind = _measured_class(model, auto_class, config, weights)
    with inside_transformers(model):
        network, loaded = kind.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # checked below, with names
        )
    for name, found, expected in sorted(loaded["mismatched_keys"]):
        raise ValueError(f"{model.name}: {name} has the shape {tuple(found)}, the network {tuple(expected)}")
    for part in unused:
        if any(name.startswith(f"{part}.") for name in loaded["missing_keys"]):
            setattr(network, part, None)
    missing = sorted(name for name in loaded["missing_keys"] if name.partition(".")[0] not in unused)
    if missing or loaded["error_msgs"]:
        what = f"{len(missing)} weights are missing, such as {missing[0]}" if missing else loaded["error_msgs"][0]
        raise ValueError(f"{model.name}: {what}; is the file of a {kind.__name__}?")
    for name, value in network.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{model.name}: {name} has values that are not finite; the file is damaged")
    return network.requires_grad_(False).eval().to(device)


def _measured_class(model: NamedModel, auto_class: Any, config: Any, weights: dict[str, Tensor]) -> Any:
    """The class of the network, after it was built without memory and compared with what the files hold."""
    from torch.nn.modules.module import register_module_module_registration_hook
    from transformers.initialization import meta_device_safe_creation_ops, no_init_weights

    most_modules = _SPARE_MODULES + _MODULES_A_TENSOR * len(weights)
    count, here = 0, threading.get_ident()

    def counted(*_: Any) -> None:
        nonlocal count
        count += threading.get_ident() == here  # the hook is every thread's
        if count > most_modules and threading.get_ident() == here:
            raise ValueError(f"more than {most_modules:,} modules for {len(weights):,} weights in its files")

    hook = register_module_module_registration_hook(counted)
    try:
        with inside_transformers(model), torch.device("meta"), no_init_weights(), meta_device_safe_creation_ops():
            network = auto_class.from_config(config, dtype=torch.float32)
    finally:
        hook.remove()
    numbers = sum(each.numel() for each in (*network.parameters(), *network.buffers()))
    there = sum(each.numel() for each in weights.values())
    if numbers > _SHARED * there + _SPARE_NUMBERS:
        raise ValueError(f"{model.name}: its settings are of {numbers:,} numbers, its files hold {there:,}")
    return type(network)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Digest of weights as numbers, without their names, which differ between versions of transformers."""
    each = {weights_digest({"": tensor}) for tensor in tensors if tensor.is_floating_point()}
    return hashlib.sha256("".join(sorted(each)).encode()).hexdigest()


def json_digest(content: Any) -> str:
    """Digest of JSON; of settings, those that decide the numbers."""
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if name not in _NO_SETTINGS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_backbone(model: NamedModel, device: str, _mode: str) -> VisionBackbone:
    """See `NamedModel.backbone`."""
    from transformers import AutoImageProcessor, AutoModel

    part, _, layer = (model.part or "tokens").partition(":")
    if layer and not (part == "tokens" and re.fullmatch("-?[0-9]{1,4}", layer)):
        raise ValueError(f"{model.name}: {layer!r} is no layer; write the number of a hidden state, such as #tokens:-2")
    network = load_network(model, AutoModel, device, unused=("pooler",))
    folder = model_folder(model)
    if not any((folder / f"{name}_config.json").is_file() for name in ("preprocessor", "processor")):
        raise ValueError(f"{model.name}: has no preprocessor_config.json, which says how photos are resized and scaled")
    with inside_transformers(model):
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="torchvision")
        return VisionBackbone(model, network, processor, part, int(layer) if layer else None)


class VisionBackbone:
    """A `VisionNetwork` of transformers' vision networks, and of the vision towers of those that read text too.

    A photo is resized as a whole to sides that patches divide, with its shape kept where the network can place other
    shapes; its cells are the network's patches. A crop is resized to the processor's square.

    Args:
        part: "tokens", "pooled" or "projection".
        layer: row of `hidden_states`; None for `last_hidden_state`.
    """

    def __init__(self, model: NamedModel, network: Any, processor: Any, part: str, layer: int | None) -> None:
        if part == "projection" and not hasattr(network, "get_image_features"):
            raise ValueError(f"{model.name}: a {type(network).__name__} has no projection; take #pooled")
        self._name, self._model, self._processor = model.name, model, processor
        self._part, self._layer = part, layer
        self._network = network if part == "projection" else getattr(network, "vision_model", network)
        self._run = network.get_image_features if part == "projection" else self._network
        self._options = inspect.signature(getattr(self._run, "forward", self._run)).parameters
        written = read_json(model_folder(model) / "config.json", model.name)
        self._settings = json_digest(written.get("vision_config") or written)
        config = getattr(network.config, "vision_config", network.config)
        # One grid from patches to the end, or fewer cells with each stage.
        self._one_grid = (
            hasattr(config, "hidden_size") and hasattr(config, "patch_size") and not hasattr(config, "depths")
        )
        self._cell = _pair(config.patch_size)[0] if self._one_grid else 1
        side = self._cell * math.isqrt(getattr(config, "num_patches", 256))
        self._native = _pair(getattr(config, "image_size", None) or side)
        self._longest = model.longest_side or (max(self._native) if self._one_grid else _CONVOLUTIONAL_SIDE)
        self._by_numbers = any(hasattr(processor, name) for name in _OWN_SIZES)
        self._device = next(self._network.parameters()).device
        self._special, self._any_shape, self._own_pooling = 0, True, False
        with torch.inference_mode():
            for height, width in (self._whole((self._longest, self._longest)), self._square(), self._native):
                cells = height * width // self._cell**2 if self._one_grid else 0
                if not 0 < max(height, width) <= _MOST_SIDE or cells > _MOST_CELLS:
                    raise ValueError(f"{model.name}: photos of {width} x {height} pixels; at most {_MOST_SIDE} a side")
            if part != "tokens":
                self._either(self._check_pooling, self._square())
            if not self._own_pooling:
                self._either(self._check_map, (4 * self._cell, 6 * self._cell) if self._one_grid else _PROBE)
            if not self._any_shape and model.longest_side not in (0, max(self._native)):
                sides = f"{self._native[1]} x {self._native[0]}"
                raise ValueError(f"{model.name}: takes photos of {sides} pixels alone; leave longest_side out")
            self.pools: tuple[str, ...] = ("roi", "crop") if part == "tokens" else ("crop",)
            self.feature_dim = self.crop_vectors([np.zeros((8, 8, 3), np.uint8)]).shape[1]

    def _either(self, check: Callable[[tuple[int, int]], None], sides: tuple[int, int]) -> None:
        """A check on photos of these sides, or of the network's own if it takes no others."""
        try:
            check(sides)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError):
            self._any_shape = False
            check(self._native)

    def _check_pooling(self, sides: tuple[int, int]) -> None:
        """Finds out whether the network makes one vector of a picture."""
        found = self._outputs(torch.zeros(1, 3, *sides, device=self._device))
        self._own_pooling = found.get("pooler_output") is not None

    def _check_map(self, sides: tuple[int, int]) -> None:
        """Counts special tokens, checks that they come first, and finds the stride."""
        height, width = sides
        pixels = torch.zeros(3, 3, height, width, device=self._device)
        pixels[1, :, : self._cell, : self._cell] = 1
        pixels[2, :, height - self._cell :, width - self._cell :] = 1
        found = self._outputs(pixels, hidden=True)
        tokens: Any = found["last_hidden_state"]
        states: Any = found.get("hidden_states") or ()
        rows, columns = self._grid(found, sides, None) if tokens.dim() == 3 else (tokens.shape[-2], tokens.shape[-1])
        if tokens.dim() == 3:
            self._special = tokens.shape[1] - rows * columns
            if self._special < 0 or (self._one_grid and not _are_patches(states[0], self._special)):
                raise ValueError(f"{self._name}: its {tokens.shape[1]} tokens are no map of {rows} x {columns} patches")
        if self._layer is not None:
            if not -len(states) <= self._layer < len(states):
                raise ValueError(f"{self._name}: has hidden states 0 to {len(states) - 1}, or -1 to -{len(states)}")
            self._layer %= len(states)  # one way to write it
        self._map(found, sides)
        if not self._one_grid:
            self._cell = height // rows

    def _outputs(self, pixels: Tensor, *, hidden: bool = False) -> Any:
        """The bare network's outputs for (n, 3, height, width)."""
        sides = (pixels.shape[2], pixels.shape[3])
        hidden = hidden or self._layer is not None or not self._one_grid
        options: dict[str, Any] = {"output_hidden_states": True} if hidden else {}
        if "interpolate_pos_encoding" in self._options and sides != self._native:
            options["interpolate_pos_encoding"] = True
        if "spatial_shapes" in self._options:  # SigLIP 2 takes rows of patches, (row, column, channel)
            rows, columns = sides[0] // self._cell, sides[1] // self._cell
            pixels = pixels.unflatten(3, (columns, self._cell)).unflatten(2, (rows, self._cell))
            pixels = pixels.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
            options["pixel_attention_mask"] = pixels.new_ones(pixels.shape[:2], dtype=torch.int64)
            options["spatial_shapes"] = torch.tensor([[rows, columns]] * len(pixels), device=pixels.device)
        return self._run(pixels, **options)

    def _grid(self, found: Any, sides: tuple[int, int], layer: int | None) -> tuple[int, int]:
        """Rows and columns of cells that are tokens."""
        if self._one_grid:
            return sides[0] // self._cell, sides[1] // self._cell
        maps = found.get("reshaped_hidden_states") or found.get("hidden_states")
        if maps is None:
            raise ValueError(f"{self._name}: gives no map of the photo; name a vision network, or its #pooled vector")
        rows, columns = maps[-1 if layer is None else layer].shape[-2:]
        return rows, columns

    def _map(self, found: Any, sides: tuple[int, int]) -> Tensor:
        """(n, C, rows, columns)."""
        values: Tensor = found["last_hidden_state"] if self._layer is None else found["hidden_states"][self._layer]
        if values.dim() == 3:
            rows, columns = self._grid(found, sides, self._layer)
            if values.shape[1] != self._special + rows * columns:
                raise ValueError(f"{self._name}: {values.shape[1]} tokens are no map of {rows} x {columns} patches")
            values = values[:, self._special :].transpose(1, 2).unflatten(2, (rows, columns))
        if values.dim() != 4 or values.shape[2] * sides[1] != values.shape[3] * sides[0]:
            raise ValueError(f"{self._name}: {tuple(values.shape)} is no map of {sides[1]} x {sides[0]} pixels")
        return values

    def _whole(self, sides: tuple[float, float]) -> tuple[int, int]:
        """Sides that a photo is resized to: those that cells divide."""
        height, width = (max(1, round(side / self._cell)) * self._cell for side in sides)
        return (height, width) if self._any_shape else self._native

    def _square(self) -> tuple[int, int]:
        """Sides of a crop."""
        if side := self._model.longest_side:
            return self._whole((side, side))
        found = self._processor
        size = (found.crop_size if getattr(found, "do_center_crop", False) else found.size) or {}
        side = size.get("shortest_edge") or 0
        sides = (size.get("height") or side, size.get("width") or side)
        if not all(sides):
            return self._native
        return self._whole(sides) if self._one_grid or not self._any_shape else sides

    def _pixels(self, pictures: Sequence[np.ndarray], sides: tuple[int, int]) -> Tensor:
        """(n, 3, height, width) float32, by the processor's own numbers, nothing cut off or padded."""
        from transformers.image_processing_backends import TorchvisionBackend
        from transformers.image_utils import SizeDict

        found, size = self._processor, SizeDict(height=sides[0], width=sides[1])
        if self._by_numbers:
            photos = [torch.from_numpy(each).permute(2, 0, 1) for each in pictures]
            resized = torch.stack([TorchvisionBackend.resize(found, each, size, found.resample) for each in photos])
            numbers = (found.do_rescale, found.rescale_factor, found.do_normalize, found.image_mean, found.image_std)
            pixels = found.rescale_and_normalize(resized, *numbers)
        else:
            # Said, not inferred: a picture of three rows could be one of three channels.
            options = {"input_data_format": "channels_last", "return_tensors": "pt", "size": dict(size)}
            whole = {"do_resize": True, "do_center_crop": False, "do_pad": False}
            pixels = found(images=list(pictures), **whole, **options)["pixel_values"]
        if pixels.shape != (len(pictures), 3, *sides):
            raise ValueError(f"{self._name}: {type(found).__name__} gives {tuple(pixels.shape)}, not {sides}")
        return pixels.to(self._device, torch.float32)

    def feature_map(self, photo: np.ndarray) -> FeatureMap:
        """As `VisionNetwork.feature_map`."""
        height, width = photo.shape[:2]
        scale = self._longest / max(height, width)
        sides = self._whole((height * scale, width * scale))
        found = self._outputs(self._pixels([photo], sides))
        values = self._map(found, sides)
        return FeatureMap(values.float(), (values.shape[3] / width, values.shape[2] / height))

    def crop_vectors(self, crops: Sequence[np.ndarray]) -> Tensor:
        """As `VisionNetwork.crop_vectors`: the mean of the cells of "tokens", else the network's own vector."""
        sides = self._square()
        found = self._outputs(self._pixels(crops, sides))
        if self._own_pooling:
            vectors: Tensor = found["pooler_output"].flatten(1)
        elif self._part == "pooled" and self._special:
            vectors = found["last_hidden_state"][:, 0]
        else:
            vectors = self._map(found, sides).mean(dim=(2, 3))
        return vectors.float()

    def text_vectors(self, texts: Sequence[str]) -> Tensor:
        """(n, D) float32 of n texts, in the space of the "projection" of photos. Raises ValueError for a network
        without one, or without the tokenizer's files."""
        from transformers import AutoTokenizer

        if self._part != "projection" or not hasattr(self._network, "get_text_features"):
            raise ValueError(f"{self._name}: has vectors of photos alone; texts have some beside #projection")
        folder, longest = model_folder(self._model), self._network.config.get_text_config().max_position_embeddings
        padding = "max_length" if self._network.config.model_type.startswith("siglip") else True  # as it was trained
        options: dict[str, Any] = {"padding": padding, "truncation": True, "max_length": longest}
        with inside_transformers(self._model), torch.inference_mode():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            inputs = tokenizer(list(texts), return_tensors="pt", **options).to(self._device)
            found: Tensor = self._network.get_text_features(**inputs)["pooler_output"]
        return found.float()

    @cached_property
    def _digest(self) -> str:
        """Digest of the weights that are read: without text tower and pooler of tokens."""
        left_out = ("text",) if self._part == "projection" else ("pooler.",) if self._part == "tokens" else ()
        state = self._network.state_dict()
        return digest_of(value for name, value in state.items() if not name.startswith(left_out))

    def describe(self, pool: str) -> dict[str, Any]:
        """As `VisionNetwork.describe`. The settings are those of the file, which no version of transformers changes."""
        found = self._processor
        pooled = "pooler" if self._own_pooling else "class token" if self._special else "mean of cells"
        vector = {"tokens": "cells" if pool == "roi" else "mean of cells", "pooled": pooled}.get(self._part, self._part)
        side = {"longest_side": self._longest, "multiple_of": self._cell}
        numbers = [(name, getattr(found, name)) for name in (*_PIXEL_NUMBERS, *_RARE_NUMBERS) if hasattr(found, name)]
        described = {
            "name": f"hf:{self._network.config.model_type}#{self._part}",
            "layer": self._layer,
            "vector": vector,
            "weights": self._digest,
            "settings": self._settings,
            "input": side if pool == "roi" and self._any_shape else {"sides": list(self._square())},
            "processor": {
                "class": type(found).__name__,
                **{name: getattr(value, "value", value) for name, value in numbers},
            },
        }
        return dict(plain_json(described))


def _pair(value: Any) -> tuple[int, int]:
    """Height and width."""
    height, width = value if isinstance(value, list | tuple) else (value, value)
    return int(height), int(width)


def _are_patches(states: Tensor, special: int) -> bool:
    """Whether the first and the last patch of a photo are the tokens after `special` ones and at the end: the second of
    these photos differs from the first in its first patch, the third in its last."""
    moved = (states[1:] - states[:1]).abs().sum(dim=2).argmax(dim=1).tolist()
    return moved == [special, states.shape[1] - 1]
