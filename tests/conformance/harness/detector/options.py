"""The options of a detector folder: case.json, and config_<set>.json in the words of the Hugging Face port.

The port's config files lie in two places (README of the reference arrays): `input.format` says RGB where the network is
fed with BGR, and `resnets.res5_dilation` says 1 where res5 is dilated by 2. Both are read as what the code does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.case_files import is_number, read_case_json
from harness.tolerances import DETECTOR, Closeness
from roibeam.extraction.network.config import POOLED_CELLS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions, SelectionPolicy

TRUE_SIZE = "full"  # name of the set of the published sizes
# A config from anybody must not take all memory; each is several times what was ever published.
MOST = {
    "resnets.width_per_group": 256,
    "roi_heads.num_classes": 65534,
    "roi_box_head.num_attrs": 65534,
    "proposal_generator.hidden_channels": 8192,
    "rpn.pre_nms_topk_test": 100_000,
    "rpn.post_nms_topk_test": 10_000,
    "input.min_size_test": 4096,
    "input.max_size_test": 8192,
    "size_divisibility": 1024,
}


@dataclass(frozen=True)
class DetectorSet:
    """One network of a folder."""

    name: str  # of the set, such as "small"
    salt: int  # seed of its random weights
    config: DetectorConfig
    conventions: Conventions
    # The port's own rule, with the config's thresholds and minimum; its maximum is in the arrays' names
    selection: SelectionPolicy
    values: Closeness  # the table's tolerance; a folder may ask for a closer one, never for a looser one

    @property
    def is_reduced(self) -> bool:
        """Whether its files hold what is left out at true size."""
        return self.name != TRUE_SIZE


@dataclass(frozen=True)
class CaseOptions:
    """What case.json says."""

    salt: int  # seed of the random weights
    photos: tuple[str, ...]  # names of the photos, without ".png"
    batch_order: tuple[str, ...]  # photos of the batch case, in order
    sets: Mapping[str, str]  # name of each set -> name of its config file
    values: Closeness  # as of a set


def read_case_options(path: Path) -> CaseOptions:
    """Raises ValueError or OSError, one line, for a file that says something else than the README's case.json."""
    content = read_case_json(path)
    unknown = set(content) - {"salt", "photos", "batch_order", "sets", "tolerance"}
    if unknown:
        raise ValueError(f"{path}: {', '.join(sorted(unknown))}: options that no check here knows")
    salt, sets = content.get("salt"), content.get("sets")
    if isinstance(salt, bool) or not isinstance(salt, int) or salt < 0:
        raise ValueError(f"{path}: salt is {salt!r}, expected a whole number of at least 0")
    photos = tuple(_file_name(name, path) for name in _listed(content, "photos", path))
    batch_order = tuple(_file_name(name, path) for name in _listed(content, "batch_order", path, photos))
    if set(batch_order) - set(photos):
        raise ValueError(f"{path}: batch_order names {sorted(set(batch_order) - set(photos))}, which are not in photos")
    if not isinstance(sets, dict) or not sets:
        raise ValueError(f"{path}: sets is {sets!r}, expected an object of set name -> config file")
    named = {_file_name(name, path): _file_name(file, path) for name, file in sets.items()}
    return CaseOptions(salt, photos, batch_order, named, _values(content.get("tolerance"), path))


def _values(asked: object, path: Path) -> Closeness:
    values = DETECTOR.values
    if asked is None:
        return values
    numbers = asked if isinstance(asked, dict) and set(asked) == {"max_rel", "rtol"} else {}
    if not numbers or not all(is_number(value) and value > 0 for value in numbers.values()):
        raise ValueError(f"{path}: tolerance is {asked!r}, expected positive numbers max_rel and rtol")
    return Closeness(min(values.max_rel, numbers["max_rel"]), min(values.rtol, numbers["rtol"]))


def _listed(content: Mapping[str, Any], name: str, path: Path, default: tuple[str, ...] | None = None) -> list[Any]:
    value = content.get(name, None if default is None else list(default))
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path}: {name} is {value!r}, expected a list of photo names")
    return value


def _file_name(value: object, path: Path) -> str:
    """A name that stays in its folder."""
    if not isinstance(value, str) or not value or value in (".", "..") or set(value) & set("/\\\0"):
        raise ValueError(f"{path}: {value!r} is no plain file name")
    return value


def read_detector_set(name: str, path: Path, salt: int, values: Closeness) -> DetectorSet:
    """The network that a config file describes. Raises ValueError for an option that is unknown, absent or asks for
    what our detector cannot compute; OSError."""
    options = _Options(read_case_json(path), path)
    for key, allowed in _FIXED.items():
        options.require_one(key, allowed)
    base = options.whole("resnets.width_per_group")
    options.require_one("resnets.stem_out_channels", (base,))
    options.require_one("resnets.res2_out_channels", (4 * base,))
    hidden = options.whole("proposal_generator.hidden_channels", least=-1)
    try:
        config = DetectorConfig(
            depth=options.whole("resnets.depth"),
            base_channels=base,
            num_classes=options.whole("roi_heads.num_classes"),
            num_attributes=options.whole("roi_box_head.num_attrs"),
            anchor_sizes=options.only_level("anchor_generator.sizes"),
            anchor_ratios=options.only_level("anchor_generator.aspect_ratios"),
            rpn_hidden_channels=16 * base if hidden == -1 else hidden,
            proposals_before_nms=options.whole("rpn.pre_nms_topk_test"),
            proposals_after_nms=options.whole("rpn.post_nms_topk_test"),
            proposal_nms_iou=options.number("rpn.nms_thresh"),
            short_edge=options.whole("input.min_size_test"),
            long_edge=options.whole("input.max_size_test"),
        )
        halved = options.flag("roi_box_head.res5halve")
        conventions = replace(
            CONVENTIONS["hf"],
            pixel_mean=options.numbers("model.pixel_mean"),
            pixel_std=options.numbers("model.pixel_std"),
            padding_multiple=max(options.whole("size_divisibility", least=0), 1),
            stem_pool="pad-0-ceil" if options.flag("model.max_pool") else "pad-1-floor",
            stride_conv="1x1" if options.flag("resnets.stride_in_1x1") else "3x3",
            # lxmert/modeling_frcnn.py, Res5ROIHeads: both are switched by res5halve, whatever res5_dilation says.
            res5_stride=2 if halved else 1,
            res5_dilation=1 if halved else 2,
            anchor_offset=options.number("anchor_generator.offset"),
            proposal_delta_weights=options.numbers("rpn.bbox_reg_weights"),
            region_delta_weights=options.numbers("roi_box_head.bbox_reg_weights"),
        )
        selection = replace(
            SELECTIONS["hf-100"],
            nms_thresholds=options.thresholds("roi_heads.nms_thresh_test"),
            min_regions=options.whole("min_detections", least=0),
            max_regions=options.whole("max_detections"),
        )
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    options.refuse_unread()
    return DetectorSet(name, salt, config, conventions, selection, values)


# What our detector computes in one way only; another value cannot be expressed.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "pad_value": (0,),
    "input.format": ("RGB", "BGR"),  # see the top of this file
    "resnets.res5_dilation": (1, 2),  # the same
    "resnets.norm": ("BN",),
    "resnets.num_groups": (1,),
    "resnets.out_features": (["res4"],),
    "proposal_generator.min_size": (0,),
    "rpn.in_features": (["res4"],),
    "roi_heads.in_features": (["res4"],),
    "roi_box_head.cls_agnostic_bbox_reg": (False,),
    "roi_box_head.pooler_resolution": (POOLED_CELLS,),
    "roi_box_head.pooler_sampling_ratio": (0,),
    "roi_box_head.attr": (True,),
}
# Training, the device, and a score threshold that the port reads and never uses: nothing the arrays depend on.
_WITHOUT_EFFECT = {
    "backbone.freeze_at", "model.device", "rpn.batch_size_per_image", "rpn.positive_fraction", "rpn.smooth_l1_beta",
    "rpn.loss_weight", "rpn.pre_nms_topk_train", "rpn.post_nms_topk_train", "rpn.boundary_thresh",
    "rpn.iou_thresholds", "rpn.iou_labels", "roi_heads.positive_fraction", "roi_heads.proposal_append_gt",
    "roi_heads.score_thresh_test", "roi_box_head.smooth_l1_beta",
}  # fmt: skip


class _Options:
    """The values of a config file by "section.name"; remembers which were read."""

    def __init__(self, content: Mapping[str, Any], path: Path) -> None:
        self._path = path
        sections = {key: section for key, section in content.items() if isinstance(section, dict)}
        self._values = {key: value for key, value in content.items() if key not in sections}
        self._values |= {f"{key}.{name}": value for key, inner in sections.items() for name, value in inner.items()}
        self._unread = set(self._values) - _WITHOUT_EFFECT

    def require(self, key: str, fits: Callable[[Any], bool], expected: str) -> Any:
        if key not in self._values:
            raise ValueError(f"{self._path}: {key} is absent; expected {expected}")
        self._unread.discard(key)
        value = self._values[key]
        if not fits(value):
            raise ValueError(f"{self._path}: {key} is {value!r}, not computed here; expected {expected}")
        return value

    def require_one(self, key: str, allowed: tuple[object, ...]) -> None:
        self.require(key, lambda value: value in allowed, " or ".join(map(repr, allowed)))

    def whole(self, key: str, least: int = 1) -> int:
        most = MOST.get(key, 1_000_000)
        fits = f"a whole number in {least}..{most}"
        return int(self.require(key, lambda v: type(v) is int and least <= v <= most, fits))

    def number(self, key: str) -> float:
        return float(self.require(key, is_number, "a number"))

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self.require(key, lambda v: isinstance(v, list) and all(map(is_number, v)), "a list of numbers")
        return tuple(float(value) for value in values)

    def flag(self, key: str) -> bool:
        return bool(self.require(key, lambda v: isinstance(v, bool), "true or false"))

    def only_level(self, key: str) -> tuple[float, ...]:
        """Anchors come as one list for each level of a pyramid; this network has one level."""
        levels = self.require(
            key,
            lambda v: isinstance(v, list) and len(v) == 1 and isinstance(v[0], list) and all(map(is_number, v[0])),
            "one list of numbers in a list",
        )
        return tuple(float(value) for value in levels[0])

    def thresholds(self, key: str) -> tuple[float, ...]:
        value = self._values.get(key)
        return (self.number(key),) if is_number(value) else self.numbers(key)

    def refuse_unread(self) -> None:
        if self._unread:
            raise ValueError(f"{self._path}: {', '.join(sorted(self._unread))}: options that no check here knows")
