"""Settings of features: by preset and in words for people, and those that a published run needs. No torch.

Words name the preset of some settings, the boxes of a store's features, their precision, and the difference of two
runs or stores. The meaning of features (`Fingerprint.meaning`) must match and is compared elsewhere. A
difference here is never a reason to refuse: every published protocol trains on other boxes than it is evaluated on.

`Features` of a published run are data: which network, which regions of it, or boxes from a file.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from roibeam.extraction.network.config import CONFIGS, DetectorConfig, written_settings
from roibeam.extraction.network.conventions import (
    CONVENTIONS,
    CONVENTIONS_OF_SIZES,
    PROPOSAL_FIELDS,
    SELECTIONS,
    Conventions,
    SelectionPolicy,
)
from roibeam.extraction.weights.detector_choice import PRESETS, PUBLISHED_SELECTIONS, ChosenDetector, named
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of

OTHER_SETTINGS = "was made with other settings"


def conventions_name(conventions: Mapping[str, Any]) -> str:
    """The preset that these are, or the nearest one and what differs: "hf" or "hf, but exif_orientation ignored".

    Args:
        conventions: fields of `Conventions`, as a dict or as read from JSON; some may be missing (given boxes).
    """
    return _name(_with_defaults(Conventions, conventions), {name: asdict(each) for name, each in CONVENTIONS.items()})


def selection_name(selection: Mapping[str, Any]) -> str:
    """`conventions_name` for the fields of a `SelectionPolicy`: "butd-36" or "butd-36, but max_regions 12"."""
    return _name(_with_defaults(SelectionPolicy, selection), {name: asdict(each) for name, each in SELECTIONS.items()})


def _with_defaults(kind: type[Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """With the `added` fields, which a record leaves out at their default; one of given boxes or a grid has none of
    proposals."""
    names = {each.name: each.default for each in fields(kind) if "added" in each.metadata}
    unknown = () if PROPOSAL_FIELDS[0] in recorded else PROPOSAL_FIELDS
    return {name: value for name, value in names.items() if name not in unknown} | dict(recorded)


def parts_words(config: DetectorConfig, conventions: Conventions, selection: SelectionPolicy | None) -> str:
    """Settings in a few words: the name of their preset, or of its three parts."""
    for known in PRESETS.values():
        parts = (CONFIGS[known.detector], CONVENTIONS[known.conventions], SELECTIONS[known.selection])
        if (config, conventions, selection) == parts:
            return f"preset {known.name} ({_parts(config, known.conventions, selection)})"
    regions = "" if selection is None else f", selection {selection_name(asdict(selection))}"
    regions = ", cells of a grid" if config.grid else regions
    return f"conventions {conventions_name(asdict(conventions))}, photos at {_edges(config)}{regions}"


def choice_words(chosen: ChosenDetector, detector: str | None, settings: Sequence[str], *, with_boxes: bool) -> str:
    """Line for the user on the chosen detector, and on changes of its preset.

    Args:
        settings: "section.field=value" each, as the user gave them.
        with_boxes: whether the boxes are given, so that no region is selected.
    """
    used = chosen.preset
    if used is None:
        own = "of its own" if chosen.is_folder else conventions_name(asdict(chosen.conventions))
        selected = "cells of a grid" if chosen.config.grid else f"selection {selection_name(asdict(chosen.selection))}"
        regions = "given boxes" if with_boxes else selected
        line = f"detector {detector} (conventions {own}, photos at {_edges(chosen.config)}), {regions}"
    else:
        selection = None if with_boxes else SELECTIONS[used.selection]
        line = f"preset {used.name} ({_parts(CONFIGS[used.detector], used.conventions, selection)})"
    for part, name in chosen.overrides:
        if not (with_boxes and part == "selection"):
            line += f"; --{part} {name} overrides its {part}"
    changed = [setting.partition("=")[0].strip() for setting in settings]
    return f"{line}; --set changes {', '.join(changed)}" if changed else line


def _parts(config: DetectorConfig, conventions: str, selection: SelectionPolicy | None) -> str:
    if selection is None:
        regions = "given boxes"
    elif selection.min_regions == selection.max_regions:
        regions = f"{selection.max_regions} regions"
    else:
        regions = f"{selection.min_regions} to {selection.max_regions} regions"
    return f"conventions {conventions}, photos at {_edges(config)}, {regions}"


def _edges(config: DetectorConfig) -> str:
    return f"{config.short_edge}/{config.long_edge}"


def _name(settings: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    plain = json.loads(json.dumps(settings))  # tuples are lists in files
    changes = {}
    for name, preset in presets.items():
        known = json.loads(json.dumps(preset))
        changes[name] = [field for field, value in plain.items() if field not in known or known[field] != value]
    nearest = min(changes, key=lambda name: len(changes[name]))
    different = ", ".join(f"{field} {settings[field]}" for field in changes[nearest])
    return f"{nearest}, but {different}" if different else nearest


_KINDS: Mapping[str, type[Any]] = {
    "feature_space.detector.config": DetectorConfig,
    "feature_space.detector.conventions": Conventions,
    "feature_space.regions": SelectionPolicy,
}


def setting_changes(had: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences of two flat settings, one text each; those that an option sets as a preset come first."""
    different = [key for key in sorted(had.keys() | now.keys()) if had.get(key) != now.get(key)]
    presets = []
    for option, prefix, name in (
        ("conventions", "feature_space.detector.conventions.", conventions_name),
        ("selection", "feature_space.regions.", selection_name),
    ):
        sides = [{key.removeprefix(prefix): each[key] for key in each if key.startswith(prefix)} for each in (had, now)]
        # Sides with other fields (given boxes have fewer) are compared field by field.
        if sides[0] != sides[1] and sides[0].keys() == sides[1].keys():
            presets.append(f"{option} was {name(sides[0])}, is now {name(sides[1])}")
            different = [key for key in different if not key.startswith(prefix)]
    if "mode" in different:
        different.remove("mode")
        presets.append(f"precision was {_precision(had)}, is now {_precision(now)}")
    pairs = ((key, *("none" if side.get(key) == "" else side.get(key) for side in (had, now))) for key in different)
    return presets + [f"{key} was {before}, is now {after}" for key, before, after in pairs]


def _precision(settings: Mapping[str, Any]) -> str:
    """A mode as the options of `extract` name it."""
    mode = settings.get("mode")
    return {"exact": "float32", "batched": "float32 --batched"}.get(str(mode), str(mode))


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, with the `added` ones."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and prefix + key in _KINDS:
            value = _with_defaults(_KINDS[prefix + key], value)
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def other_run_error(store: object, what: str, changes: Sequence[str]) -> str:
    """Error for a store that this run cannot go on with.

    Args:
        what: how the store is another run's, such as `OTHER_SETTINGS`.
    """
    return f"{store} {what}: {', '.join(changes[:3])}; repeat the earlier command, or choose a new folder"


# Distance of one box's feature in a mode from that in exact mode, by BENCHMARKS.md.
_MODE_ERRORS = {
    "bf16": "in bf16 a feature has a cosine of 0.9989 or more to that of exact, 0.99997 on average",
    "tf32": "in tf32 a feature differs from that of exact by at most 2e-4 of the maximum",
}


def boxes_words(fingerprint: Fingerprint) -> str | None:
    """Boxes in words, such as "10 to 100 regions (butd-10-100)" or "given boxes"; None if unknown."""
    choice = fingerprint.choice
    regions, filters = choice.get("regions"), choice.get("region_filters")
    fixed = {"given": "given boxes", "grid": "cells of a grid"}
    words = None if regions is None else fixed[regions] if isinstance(regions, str) else _selection_words(regions)
    if filters:
        filter_words = "; ".join(_filter_words(each) for each in (filters if isinstance(filters, list) else [filters]))
        words = f"{words or 'regions'}, of them {filter_words}"
    return words


def dtype_words(fingerprint: Fingerprint) -> str | None:
    """Dtype in words, such as "float16", or "float32 (rounded to float16 before)"; None if unknown."""
    choice = fingerprint.choice
    dtype, rounded = choice.get("feature_dtype"), choice.get("rounded_to")
    if dtype is None:
        return None
    before = rounded if isinstance(rounded, list) else [rounded]
    return f"{dtype} (rounded to {', '.join(map(str, before))} before)" if rounded else str(dtype)


def choice_note(subject: str, known: Sequence[Fingerprint], other: str, fingerprint: Fingerprint) -> str | None:
    """One line on differences in boxes, dtype and mode of two sides whose features mean the same; None where there are
    none, or one side is unknown.

    Args:
        subject: the one side, such as "the model was trained on".
        known: its features: where there are several, one of them is enough to agree with.
        other: the other side, such as "store b has".
    """
    pairs, tails = [], ["region features mean the same"]
    for words in (boxes_words, dtype_words, _mode_words):
        mine = list(dict.fromkeys(named for each in known if (named := words(each)) is not None))
        yours = words(fingerprint)
        if mine and yours is not None and yours not in mine:
            pairs.append((" and ".join(mine), yours))
            if words is _mode_words:
                tails += [error for mode, error in _MODE_ERRORS.items() if mode in _modes(*known, fingerprint)]
    proposals = _different_proposals(known, fingerprint)
    if proposals is not None:
        pairs.append(proposals)
    if not pairs:
        return None
    left, right = (", ".join(side) for side in zip(*pairs, strict=True))
    return f"{subject} {left}, {other} {right}: {'; '.join(tails)}"


def _selection_words(regions: Any) -> str:
    try:
        few, many = regions["min_regions"], regions["max_regions"]
        moved = ", boxes moved by their class" if regions["kept_box"] == "regressed" else ""
        return f"{many if few == many else f'{few} to {many}'} regions ({selection_name(regions)}){moved}"
    except (KeyError, TypeError):  # another code base's idea of a selection
        return f"regions {json.dumps(regions)}"


def _filter_words(chosen: Any) -> str:
    if not isinstance(chosen, dict):
        return json.dumps(chosen)
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value not in (None, 0))


def _modes(*fingerprints: Fingerprint) -> list[str]:
    found = (each.numerics.get("mode") for each in fingerprints)
    return [str(mode) for modes in found if modes for mode in (modes if isinstance(modes, list) else [modes])]


def _mode_words(fingerprint: Fingerprint) -> str | None:
    modes = _modes(fingerprint)
    return f"mode {' and '.join(modes)}" if modes else None


def _different_proposals(known: Sequence[Fingerprint], fingerprint: Fingerprint) -> tuple[str, str] | None:
    """The fields that differ, where both sides chose among proposals."""
    yours: dict[str, Any] = fingerprint.choice.get("proposals", {})
    mine: list[dict[str, Any]] = [found for each in known if (found := each.choice.get("proposals"))]
    if not yours or not mine or yours in mine:
        return None
    names = [name for name in sorted(yours.keys() | mine[0].keys()) if yours.get(name) != mine[0].get(name)]
    default = {f"conventions.{each.name}": each.default for each in fields(Conventions) if "added" in each.metadata}
    left, right = (
        " ".join(
            f"{name.rpartition('.')[2]} {json.dumps(side.get(name, default.get(name)))}"
            for name in names
            if name != "cell_anchors"
        )
        for side in (mine[0], yours)
    )
    own = ("anchors of its own", "other anchors")
    return (f"proposals by {left}", f"proposals by {right}") if left else own


PHOTOS, STORE, WEIGHTS = "PHOTOS", "STORE", "WEIGHTS"  # what a user fills in
# Given boxes: whose they are, and the file that `extract --boxes` reads.
GIVEN_BOXES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "vcr": ("VCR's own boxes", "vcr1images/"),
        "coco": ("COCO's annotated boxes", "instances_train2014.json"),
        "refcoco+": ("the annotated boxes of COCO's photos", "refcoco+/instances.json"),
        "mattnet": ("MAttNet's detected boxes", "res101_coco_minus_refer_notime_dets.json"),
    }
)
_DETECTRON2 = "a network of detectron2's"


@dataclass(frozen=True)
class Features:
    """Features that `roibeam extract` makes for a run: a preset, or a detector without a preset.

    Attributes:
        preset: name in `PRESETS`; "" beside another detector.
        detector: as `extract --detector` takes it; of a preset where it is left out.
        selection: name in `SELECTIONS`, the rule which regions stay; of the preset, or of detectron2's network, where
            it is left out; "" where the boxes are given.
        boxes: name in `GIVEN_BOXES`; "" for regions that the detector proposes.
        annotated: the same, of a second store by the same network (`finetune --annotated-store`); "" for none.
        image_feature: of the whole photo, as `extract --image-feature` takes it; "" for none.

    Raises:
        ValueError: for an unknown name, or neither preset nor detector.
    """

    preset: str = ""
    detector: str = ""
    selection: str = ""
    boxes: str = ""
    annotated: str = ""
    image_feature: str = ""

    def __post_init__(self) -> None:
        preset = named("preset", self.preset, PRESETS) if self.preset or not self.detector else None
        detector = self.detector or ("" if preset is None else preset.detector)
        named("detector", detector, {**CONFIGS, **PUBLISHED_SELECTIONS})
        for boxes in filter(None, (self.boxes, self.annotated)):
            named("boxes", boxes, GIVEN_BOXES)
        selection = self.selection or (PUBLISHED_SELECTIONS.get(detector, "") if preset is None else preset.selection)
        if not self.boxes:
            named("selection", selection, SELECTIONS)
        object.__setattr__(self, "detector", detector)
        object.__setattr__(self, "selection", "" if self.boxes else selection)

    @property
    def conventions(self) -> str:
        """Name in `CONVENTIONS`; "" of a network of detectron2's."""
        return PRESETS[self.preset].conventions if self.preset else CONVENTIONS_OF_SIZES.get(self.detector, "")

    @property
    def commands(self) -> tuple[str, ...]:
        """`roibeam extract ...` for each store, to be typed with photos, weights and store in place of capitals."""
        second = self.of_annotated
        return (shlex.join(self._words()), *(() if second is None else second.commands))

    @property
    def of_annotated(self) -> Features | None:
        """The second store's; None where there is none."""
        return replace(self, boxes=self.annotated, annotated="") if self.annotated else None

    def words(self) -> str:
        """Description such as "preset vl-bert: 10 to 100 regions (vl-bert)"."""
        network = f"preset {self.preset}" if self.preset else f"detector {self.detector}"
        found = [self._boxes_words(), *([GIVEN_BOXES[self.annotated][0]] if self.annotated else [])]
        whole = f"; {self.image_feature.partition('=')[0]} feature of the whole photo" if self.image_feature else ""
        return f"{network}: {', and in a second store '.join(found)}{whole}"

    def note(self, of: str, store: str, fingerprint: Fingerprint, *, boxes_alone: bool = False) -> str | None:
        """One line if a store records that it was made otherwise; None if it was not, or if unknown.

        Args:
            of: the recipe's name.
            boxes_alone: the run makes features of its own, and reads the boxes of the store.
        """
        pairs = []
        network = None if boxes_alone else self._other_network(fingerprint)
        if network is not None:
            pairs.append((f"detector {self.detector}", network))
        boxes = boxes_words(fingerprint)
        if boxes is not None and boxes != boxes_words(self._as_recorded()):
            pairs.append((self._boxes_words(), boxes))
        if not pairs:
            return None
        left, right = (", ".join(side) for side in zip(*pairs, strict=True))
        return f"recipe {of} is of {left}, store {store} has {right}; roibeam recipes {of} prints how to extract"

    def _words(self) -> list[str]:
        words = ["roibeam", "extract", PHOTOS, STORE]
        words += ["--preset", self.preset] if self.preset else ["--detector", self.detector]
        if self.preset and self.detector != PRESETS[self.preset].detector:
            words += ["--detector", self.detector]
        usual = PRESETS[self.preset].selection if self.preset else PUBLISHED_SELECTIONS.get(self.detector)
        words += ["--selection", self.selection] if self.selection and self.selection != usual else []
        words += ["--boxes", GIVEN_BOXES[self.boxes][1]] if self.boxes else []
        words += ["--image-feature", self.image_feature] if self.image_feature else []
        return [*words, "--weights", WEIGHTS]

    def _boxes_words(self) -> str:
        return GIVEN_BOXES[self.boxes][0] if self.boxes else str(boxes_words(self._as_recorded()))

    def _as_recorded(self) -> Fingerprint:
        """Fingerprint with the boxes as a store that was made so has them."""
        details: dict[str, Any] = {
            "regions": "given" if self.boxes else _plain(written_settings(SELECTIONS[self.selection]))
        }
        return Fingerprint(feature_space_of(details), {}, details)

    def _other_network(self, fingerprint: Fingerprint) -> str | None:
        """The store's, in words; None where it is this one, or not known."""
        detector = fingerprint.details.get("detector")
        if not isinstance(detector, dict) or not isinstance(detector.get("config"), dict):
            return None
        config, conventions = detector["config"], detector.get("conventions")
        if "MODEL" in config or not isinstance(conventions, dict):
            return None if self.detector in PUBLISHED_SELECTIONS else _DETECTRON2
        words = f"conventions {conventions_name(conventions)}, photos at {config['short_edge']}/{config['long_edge']}"
        if self.detector in PUBLISHED_SELECTIONS:
            return words
        if _differing(conventions, asdict(CONVENTIONS[self.conventions])):
            return words
        return ", ".join(_differing(config, asdict(CONFIGS[self.detector]))) or None


def _differing(recorded: Mapping[str, Any], meant: Mapping[str, Any]) -> list[str]:
    """Differences such as "num_classes 80"; a store of given boxes records less, a ResNet alone has no classes."""
    meant = _plain(meant)
    if recorded.get("num_classes") == 0:
        meant |= {"num_classes": 0, "num_attributes": 0}
    return [f"{name} {value}" for name, value in recorded.items() if meant.get(name) != value]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as in a JSON file: tuples are lists."""
    found: dict[str, Any] = json.loads(json.dumps(fields))
    return found
