"""Network of detectron2 from files: its YAML config and its weights, read without executing anything in them.

Names of weights in files of detectron2's forerunners, Detectron (Caffe2) and maskrcnn-benchmark, become detectron2's.
Detectron's are turned by detectron2's own converter; its normalisations have no statistics (mean 0, variance 1). Those
of maskrcnn-benchmark are turned here. In both files the background is the first class, in detectron2 the last.
detectron2 is imported inside functions only: this module imports without it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roibeam.extraction.adapters.detectron2_vg import PUBLISHED, add_vg_keys, register_vg_detector, require_detectron2
from roibeam.extraction.network.state import (
    CELL_ANCHORS,
    check_state,
    is_plain_tensor,
    is_weight,
    random_seed,
    random_state,
    show_tensor,
)
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_weights
from roibeam.messages import printable

_DETECTRON, _BENCHMARK = "conv1_w", "backbone.body."
# maskrcnn-benchmark divides by the root of the variance as it is, detectron2 adds this first.
_EPSILON = 1e-5
_RULES = (
    (r"^module\.", ""),
    (r"^backbone\.body\.stem\.bn1\.", "backbone.bottom_up.stem.conv1.norm."),
    (r"^backbone\.body\.stem\.", "backbone.bottom_up.stem."),
    (r"^backbone\.body\.layer1\.", "backbone.bottom_up.res2."),
    (r"^backbone\.body\.layer2\.", "backbone.bottom_up.res3."),
    (r"^backbone\.body\.layer3\.", "backbone.bottom_up.res4."),
    (r"^backbone\.body\.layer4\.", "backbone.bottom_up.res5."),
    (r"\.bn([123])\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
    (r"^rpn\.head\.conv\.", "proposal_generator.rpn_head.conv."),
    (r"^rpn\.head\.cls_logits\.", "proposal_generator.rpn_head.objectness_logits."),
    (r"^rpn\.head\.bbox_pred\.", "proposal_generator.rpn_head.anchor_deltas."),
    (r"^roi_heads\.box\.feature_extractor\.fc6\.", "roi_heads.box_head.fc1."),
    (r"^roi_heads\.box\.feature_extractor\.fc7\.", "roi_heads.box_head.fc2."),
    (r"^roi_heads\.box\.predictor\.", "roi_heads.box_predictor."),
)
# Anchors of maskrcnn-benchmark are rounded and a pixel narrower; the adapter computes detectron2's. Attributes have a
# head of their own there, which detectron2 lacks.
_DROPPED = re.compile(r"^(?:module\.)?(?:rpn\.anchor_generator\.|roi_heads\..*attr)")


def in_detectron2_names(found: Mapping[str, object], expected: Iterable[str]) -> dict[str, object]:
    """The same weights by the names of a detectron2 network; those of detectron2 stay as they are."""
    if _DETECTRON in found:
        return _with_statistics(_of_detectron(found, list(expected)), expected)
    if any(name.removeprefix("module.").startswith(_BENCHMARK) for name in found):
        return dict(_of_benchmark(name, value) for name, value in found.items() if not _DROPPED.match(name))
    return _with_statistics(dict(found), expected)


def _of_detectron(found: Mapping[str, object], expected: list[str]) -> dict[str, object]:
    from detectron2.checkpoint.c2_model_loading import convert_c2_detectron_names

    weights = {name: value for name, value in found.items() if not name.endswith("_momentum")}
    tensors = {name: value for name, value in weights.items() if is_plain_tensor(value)}
    renamed: dict[str, object] = dict(convert_c2_detectron_names(tensors)[0])
    others = {name: value for name, value in weights.items() if name not in tensors}
    return {_only_end(name, expected): value for name, value in renamed.items()} | others


def _only_end(name: str, expected: list[str]) -> str:
    """The one expected name that ends so; the name itself where there is none, or several."""
    ends = [each for each in expected if each == name or each.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else name


def _of_benchmark(name: str, value: object) -> tuple[str, object]:
    for old, new in _RULES:
        name = re.sub(old, new, name)
    name = re.sub(r"^backbone\.fpn\.fpn_inner(\d)\.", lambda at: f"backbone.fpn_lateral{int(at[1]) + 1}.", name)
    name = re.sub(r"^backbone\.fpn\.fpn_layer(\d)\.", lambda at: f"backbone.fpn_output{int(at[1]) + 1}.", name)
    if not isinstance(value, Tensor):
        return name, value
    if name.startswith("roi_heads.box_predictor.cls_score."):
        return name, torch.cat([value[1:], value[:1]])
    if name.startswith("roi_heads.box_predictor.bbox_pred."):
        return name, value[4:]
    return name, value - _EPSILON if name.endswith("norm.running_var") else value


def _with_statistics(found: dict[str, object], expected: Iterable[str]) -> dict[str, object]:
    """The weights, with mean 0 and variance 1 for normalisations that have a weight alone, as in detectron2."""
    for name in expected:
        norm, _, kind = name.rpartition(".")
        weight = found.get(f"{norm}.weight")
        if kind in ("running_mean", "running_var") and name not in found and isinstance(weight, Tensor):
            found[name] = torch.zeros_like(weight) if kind == "running_mean" else torch.ones_like(weight)
    return found


_MAX_CONFIG_BYTES = 2**16  # the largest in detectron2's configs and projects has 4.5 kB
_MAX_CONFIG_DEPTH = 50  # detectron2's own keys nest 4 deep; PyYAML takes time with the square of open brackets
# Far beyond every published config, and within a machine's memory and time.
_MAX_NUMBER, _MAX_EDGE, _MAX_LAYERS, _MAX_ITEMS = 1_000_000, 16_384, 100, 100


def build_detectron2_network(config: str | Path | Any, weights: str) -> tuple[nn.Module, Any]:
    """A detectron2 model with its weights, on the CPU, and the resolved config it was built from.

    Args:
        config: a name of `PUBLISHED`, a YAML file, or a CfgNode, which is left as it is; MODEL.DEVICE and MODEL.WEIGHTS
            are not looked at.
        weights: a file as `fetch_weights` takes it, in detectron2's names, or `random:<seed>`.
    """
    register_vg_detector()
    from detectron2.modeling import build_model

    if isinstance(config, str) and config in PUBLISHED:
        cfg = PUBLISHED[config]()
    else:
        cfg = read_detectron2_config(config) if isinstance(config, (str, Path)) else config.clone()
    cfg.defrost()
    add_vg_keys(cfg)
    cfg.MODEL.DEVICE, cfg.MODEL.WEIGHTS = "meta", ""
    try:
        with torch.device("meta"):
            _check_fits(build_model(cfg), weights)
        cfg.MODEL.DEVICE = "cpu"
        network: nn.Module = build_model(cfg)
    # An ImportError means a part that needs detectron2's compiled code, such as deformable convolutions.
    except (KeyError, AssertionError, ValueError, TypeError, AttributeError, ImportError, RuntimeError) as error:
        raise ValueError(f"detectron2 cannot build the network of this config: {_one_line(error)}") from None
    check_network(network, cfg)
    _load_weights(weights, network)
    return network, cfg


def read_detectron2_config(path: str | Path) -> Any:
    """detectron2's defaults with a YAML file over them, as CfgNode.

    Only plain values and local files: detectron2's own loader runs Python tags in the YAML and fetches `_BASE_` over
    the network; here both are refused, as are aliases (a small file could unfold to any size), files over 64 KiB and
    values in more than 50 others.
    """
    require_detectron2()
    import yaml
    from detectron2.config import CfgNode, get_cfg

    class PlainLocalConfig(CfgNode):
        @classmethod
        def _open_cfg(cls, filename: str) -> io.StringIO:
            file = Path(filename)
            if not file.is_file():  # also for a URL
                raise ValueError(f"{filename} is not a file here")
            if file.stat().st_size > _MAX_CONFIG_BYTES:
                raise ValueError(f"{filename} has over {_MAX_CONFIG_BYTES:,} bytes")
            text = file.read_text(encoding="utf-8")
            depth = 0
            for event in yaml.parse(text, yaml.SafeLoader):
                if isinstance(event, yaml.AliasEvent):
                    raise ValueError(f"{filename} uses YAML aliases; write the values out")
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > _MAX_CONFIG_DEPTH:
                    raise ValueError(f"{filename} nests more than {_MAX_CONFIG_DEPTH} values in one another")
            return io.StringIO(text)

    cfg = get_cfg()
    add_vg_keys(cfg)
    try:
        loaded = PlainLocalConfig.load_yaml_with_base(str(path), allow_unsafe=False)
        if loaded.get("VERSION", cfg.VERSION) != cfg.VERSION:
            raise ValueError(f"config version {loaded['VERSION']}; this detectron2 has {cfg.VERSION}")
        cfg.merge_from_other_cfg(CfgNode(loaded))
        _check_numbers(cfg.MODEL, "MODEL")
        _check_numbers(cfg.INPUT, "INPUT", _MAX_EDGE)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"detectron2 config {path}: {_one_line(error)}") from None
    return cfg


def _check_numbers(value: object, name: str, most: int = _MAX_NUMBER) -> None:
    """Raises ValueError where a number or a list is larger than any network needs: what it makes is not bounded."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(inner, f"{name}.{key}", _MAX_LAYERS if key in ("NUM_CONV", "NUM_FC") else most)
    elif isinstance(value, (list, tuple)):
        if len(value) > _MAX_ITEMS:
            raise ValueError(f"{name} has {len(value):,} entries; at most {_MAX_ITEMS}")
        for inner in value:
            _check_numbers(inner, name, most)
    elif isinstance(value, (int, float)) and not -most <= value <= most:
        raise ValueError(f"{name} is {value:,}; at most {most:,}")


def _check_fits(sketch: nn.Module, weights: str) -> None:
    """Raises ValueError where the network has more weights than their file has bytes, before it takes memory."""
    num_weights = sum(tensor.numel() for name, tensor in sketch.state_dict().items() if is_weight(name))
    most = 10**9 if weights.startswith("random:") else fetch_weights(weights).stat().st_size
    if num_weights > most:
        raise ValueError(f"it has {num_weights:,} weights; weights {weights} have at most {most:,}")


def check_network(model: nn.Module, cfg: Any) -> None:
    """Raises ValueError, naming the part, if the adapter cannot run the network."""
    from detectron2.modeling import GeneralizedRCNN
    from detectron2.modeling.proposal_generator import RPN
    from detectron2.modeling.roi_heads import FastRCNNConvFCHead, FastRCNNOutputLayers, Res5ROIHeads, StandardROIHeads

    heads = getattr(model, "roi_heads", None)
    parts: list[tuple[str, object, type | tuple[type, ...]]] = [
        ("MODEL.META_ARCHITECTURE", model, GeneralizedRCNN),
        ("MODEL.PROPOSAL_GENERATOR.NAME", getattr(model, "proposal_generator", None), RPN),
        ("MODEL.ROI_HEADS.NAME", heads, (Res5ROIHeads, StandardROIHeads)),
    ]
    if isinstance(heads, StandardROIHeads):
        parts.append(("MODEL.ROI_BOX_HEAD.NAME", heads.box_head, FastRCNNConvFCHead))
    parts.append(("box predictor", getattr(heads, "box_predictor", None), FastRCNNOutputLayers))
    for name, part, wanted in parts:
        if not isinstance(part, wanted):
            kinds = wanted if isinstance(wanted, tuple) else (wanted,)
            raise ValueError(
                f"{name} gives a {type(part).__name__}; the adapter takes "
                f"{' or '.join(kind.__name__ for kind in kinds)} (a GeneralizedRCNN with a C4 or an FPN box head)"
            )
    predictor: Any = parts[-1][1]
    # Release 0.6 has no sigmoid; later versions do.
    if len(predictor.box2box_transform.weights) != 4 or getattr(predictor, "use_sigmoid_ce", False):
        raise ValueError(
            "the box predictor has rotated boxes or class scores by sigmoid (USE_SIGMOID_CE); regions have upright "
            "boxes and one class distribution, so the adapter takes softmax and four deltas"
        )
    if cfg.INPUT.FORMAT not in ("BGR", "RGB"):
        raise ValueError(f"INPUT.FORMAT is {cfg.INPUT.FORMAT!r}; the adapter takes BGR and RGB")


def _load_weights(spec: str, model: nn.Module) -> None:
    """Loads every weight of `model`, or none."""
    network: Any = model
    state = network.state_dict()
    expected = {name: tensor for name, tensor in state.items() if is_weight(name)}
    if (seed := random_seed(spec)) is not None:
        weights = random_state({name: tuple(tensor.shape) for name, tensor in expected.items()}, seed)
    else:
        source = f"weights {spec}"
        found = in_detectron2_names(read_tensors(fetch_weights(spec)), expected)
        # Older detectron2 saved these beside the weights; newer ones take them from the config alone.
        of_configs = {"pixel_mean": network.pixel_mean, "pixel_std": network.pixel_std}
        for level, anchors in enumerate(network.proposal_generator.anchor_generator.cell_anchors):
            of_configs[f"{CELL_ANCHORS.removesuffix('.0')}.{level}"] = anchors
        for name, of_config in of_configs.items():
            _check_same(name, found.pop(name, None), of_config, source)
        weights = check_state(found, expected, source)
    network.load_state_dict({**state, **weights}, strict=True)


def _check_same(name: str, found: object, of_config: Tensor, source: str) -> None:
    """Raises ValueError if the file has other numbers than the config; None means that it has none."""
    if found is None:
        return
    want = of_config.flatten().cpu()
    if not is_plain_tensor(found) or found.numel() != len(want):
        raise ValueError(f"{source}: {show_tensor(name, found)}, where the config gives {tuple(of_config.shape)}")
    got = found.flatten().float()
    # Files hold anchors rounded; a hundredth of a pixel or of a grey level moves nothing that matters.
    if not torch.allclose(got, want, rtol=0, atol=1e-2):
        place = int((got - want).abs().argmax())
        raise ValueError(
            f"{source}: {name} has {got[place]:.4f} where the config gives {want[place]:.4f}; use the config that the "
            f"weights were trained with"
        )


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply, or _BASE_ names itself"
    # YAML's errors have reason and place on several lines.
    return printable(" ".join(str(error).split()).strip("'\""), 300) or type(error).__name__
