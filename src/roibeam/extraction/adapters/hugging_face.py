"""Models of Hugging Face transformers: their files, their networks, and backbones of their vision networks.

A repository is JSON and tensors here. Its Python files are never fetched; what asks for code, for another repository or
for packages of quantization is refused; weights go through the reader of files.py. Networks are transformers' own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roibeam.extraction.adapters.named_model import NamedModel
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import hub_errors
from roibeam.messages import first_line, printable

_FETCHED = ("*.json", "*.txt", "*.model", "README.md", "model*.safetensors")
_MOST_JSON = 2**24  # bytes of a file of settings
_MOST_CARD = 2**20
_REFUSED = ("auto_map", "quantization_config", "fusion_config")
_ATTENTION = (None, "eager", "sdpa")  # others are packages, or code of a hub
_LICENSE = re.compile(r"^license(?:_name)?:[ \t]*[\"']?([^\s\"'#\[\]]+)", re.MULTILINE)
# Numbers and modules of a network beside those that its file gives reason for.
_SHARED, _SPARE_NUMBERS, _SPARE_MODULES, _MODULES_A_TENSOR = 8, 2**26, 2000, 16


def open_model(model: NamedModel) -> NamedModel:
    """A local folder as it is; a repository, fetched once, with its commit. The card's license is read.

    Raises:
        ValueError: if there is no such repository or model, or if it wants to run code of its own.
        OSError: if the hub cannot be reached and its cache does not have the files.
    """
    local = Path(model.target).expanduser()
    folder = local.absolute() if local.is_dir() else _fetched(model, _revision(model))
    opened = replace(model, folder=str(folder), revision="" if local.is_dir() else folder.name)
    read_config(opened)
    weight_files(opened)
    return replace(opened, license=_license(folder / "README.md"))


def _revision(model: NamedModel) -> str:
    return model.revision or model.name.partition("#")[0].partition("@")[2]


def _fetched(model: NamedModel, revision: str) -> Path:
    from huggingface_hub import errors, snapshot_download

    spec = f"hf:{model.target}" + (f"@{revision}" if revision else "")

    def fetch(*names: str) -> Path:
        return Path(
            snapshot_download(
                model.target, revision=revision or None, allow_patterns=list(names), ignore_patterns="*/*"
            )
        )

    try:
        with hub_errors(spec):
            folder = fetch(*_FETCHED)
            return folder if any(folder.glob("model*.safetensors")) else fetch(*_FETCHED, "pytorch_model*.bin")
    except (errors.LocalEntryNotFoundError, errors.EntryNotFoundError):
        raise OSError(
            f"{spec}: the hub cannot be reached and its cache does not hold it; fetch it on a machine with network, "
            f"or name a local folder"
        ) from None


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
        refused = next(_asks_for(content), None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is no JSON: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(content).__name__}")
    if refused is not None:
        raise ValueError(f"{where}: has {printable(refused)}, which wants code or weights from elsewhere; not run here")
    return content


def _asks_for(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            attention = key.endswith(("attn_implementation", "_implementation_internal", "experts_implementation"))
            timm = content.get("use_timm_backbone", False) is True and find_spec("timm") is not None
            if (
                (key in _REFUSED and value)
                or (attention and value not in _ATTENTION)
                or (key == "backbone" and isinstance(value, str) and not content.get("backbone_config") and not timm)
            ):
                yield f"{key} {json.dumps(value)}"
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _asks_for(value)


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
        raise ValueError(
            f"{model.name}: config.json: model_type {printable(repr(kind))} is none that transformers knows"
        )
    with _strange_settings(model):
        return CONFIG_MAPPING[kind].from_dict(settings)


@contextmanager
def _silence() -> Iterator[None]:
    """No progress bars and reports of transformers: what they tell is checked here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _strange_settings(model: NamedModel) -> Iterator[None]:
    """Settings of a stranger make transformers raise almost anything."""
    try:
        yield
    except Exception as error:
        reason = printable(first_line(error), 300)
        raise ValueError(f"{model.name}: its settings make no network: {type(error).__name__}: {reason}") from None


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
        unused: beginnings of names of weights that may be missing, as nothing reads what they make.
    Raises:
        ValueError: if a weight is missing or of another shape; if the settings are of a network far beyond the weights.
    """
    config = read_config(model)
    if type(config) not in auto_class._model_mapping:
        raise ValueError(f"{model.name}: a {config.model_type} is no model for {auto_class.__name__}")
    weights = read_weights(model)
    kind = _measured_class(model, auto_class, config, weights)
    with _silence(), _strange_settings(model):
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
    missing = sorted(name for name in loaded["missing_keys"] if not name.startswith(unused or ("\0",)))
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
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > most_modules:
            raise ValueError(f"more than {most_modules:,} modules for {len(weights):,} weights in its files")

    with ExitStack() as stack:
        hook = register_module_module_registration_hook(counted)
        stack.callback(hook.remove)
        for context in (_silence(), _strange_settings(model), torch.device("meta"), no_init_weights()):
            stack.enter_context(context)
        stack.enter_context(meta_device_safe_creation_ops())
        network = auto_class.from_config(config, dtype=torch.float32)
    numbers = sum(each.numel() for each in (*network.parameters(), *network.buffers()))
    there = sum(each.numel() for each in weights.values())
    if numbers > _SHARED * there + _SPARE_NUMBERS:
        raise ValueError(f"{model.name}: its settings are of {numbers:,} numbers, its files hold {there:,}")
    return type(network)


def class_names(model: NamedModel) -> tuple[str, ...] | None:
    """See `NamedModel.names`."""
    found: tuple[str, ...] | None = _detectors().class_names(model)
    return found


def load_detector(model: NamedModel, device: str, mode: str) -> Any:
    """See `NamedModel.detector`."""
    return _detectors().load_detector(model, device, mode)


def _detectors() -> Any:
    return import_module("roibeam.extraction.adapters.hugging_face_detectors")  # which imports this file
