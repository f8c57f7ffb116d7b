"""Choice of a detector by names: preset, detector, conventions, selection and weights.

Presets are the published extractors: one network, with the conventions, photo size and regions that each was used with.
docs/presets.md has their sources, and the reasons of choices where a paper and its code differ. `--detector` takes
detectron2's networks by name too. No torch, no detectron2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, CONVENTIONS_OF_SIZES, Conventions
from roibeam.extraction.network.selection_policy import SELECTIONS, SelectionPolicy
from roibeam.extraction.weights.detector_folder import SHIPPED, DetectorFolder, read_detector_folder
from roibeam.messages import name_hint


@dataclass(frozen=True)
class ExtractorPreset:
    """Detector, conventions and selection under one name.

    Attributes:
        name: for `--preset` and `build_detector(preset=...)`.
        source: origin of these features: code base or paper.
        detector: name in `CONFIGS`: the network's sizes, and the size that photos are resized to.
        conventions: name in `CONVENTIONS`.
        selection: name in `SELECTIONS`.
    """

    name: str
    source: str
    detector: str
    conventions: str
    selection: str


DEFAULT_PRESET = "butd-10-100"
PRESETS = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            # The tool that the others port or build on; its weights were trained at 600/1000.
            ExtractorPreset(
                "butd-10-100",
                "peteanderson80/bottom-up-attention, adaptive (arXiv:1707.07998)",
                "vg-r101-c4-600",
                "caffe",
                "butd-10-100",
            ),
            ExtractorPreset(
                "butd-36",
                "peteanderson80/bottom-up-attention, 36 regions (arXiv:1707.07998)",
                "vg-r101-c4-600",
                "caffe",
                "butd-36",
            ),
            ExtractorPreset(
                "milvlg", "MILVLG/bottom-up-attention.pytorch, caffe mode", "vg-r101-c4-600", "milvlg", "milvlg-10-100"
            ),
            # LXMERT's own published files are the Caffe tool's, as butd-36; this is what transformers' LXMERT is fed.
            ExtractorPreset(
                "lxmert", "Hugging Face's LXMERT port, unc-nlp/frcnn-vg-finetuned", "vg-r101-c4", "hf", "hf-36"
            ),
            # Its script for COCO. The notebooks take 800/1333 and a rule for regions that is not built here.
            ExtractorPreset(
                "d2", "airsplay/py-bottom-up-attention (detectron2), COCO script", "vg-r101-c4-600", "d2", "d2-36"
            ),
            # The five systems used the Caffe tool, or name only the number of regions; see ../regions.py.
            ExtractorPreset("vl-bert", "VL-BERT (arXiv:1908.08530)", "vg-r101-c4-600", "caffe", "vl-bert"),
            ExtractorPreset("vilbert", "ViLBERT (arXiv:1908.02265)", "vg-r101-c4-600", "caffe", "vilbert"),
            ExtractorPreset("visualbert", "VisualBERT (arXiv:1908.03557)", "vg-r101-c4-600", "caffe", "visualbert"),
            ExtractorPreset("imagebert", "ImageBERT (arXiv:2001.07966)", "vg-r101-c4-600", "caffe", "imagebert"),
            ExtractorPreset("interbert", "InterBERT (arXiv:2003.13198)", "vg-r101-c4-600", "caffe", "interbert"),
        )
    }
)
# Sizes of presets; others have conventions of their own.
PRESET_SIZES = frozenset(preset.detector for preset in PRESETS.values())


# Names of ../detectron2/vg.py, and the kept regions of each.
PUBLISHED_SELECTIONS: Mapping[str, str] = MappingProxyType(
    {"mask-rcnn-r101-fpn": "visualbert-nlvr2", "pythia-x152-fpn": "maskrcnn-benchmark-100"}
)
_ENDINGS = (".yaml", ".yml")
_LAYERS = ("", "fc6", "fc7")


@dataclass(frozen=True)
class Detectron2Config:
    """A network of detectron2, in place of a `DetectorConfig`.

    Attributes:
        file: a published name, or the path of a YAML config.
        layer: of an FPN network: "fc6" or "fc7"; "" for fc6, or for a C4 network.
    """

    file: str
    layer: str = ""

    def __post_init__(self) -> None:
        if self.layer not in _LAYERS:
            raise ValueError(f"layer {self.layer!r}; it must be one of {', '.join(map(repr, _LAYERS))}")


def detectron2_config(detector: object) -> Detectron2Config | None:
    """The detectron2 network that `--detector` names; None for another.

    Raises:
        ValueError: for a missing YAML file.
    """
    if not isinstance(detector, str | Path):
        return None
    name = str(detector)
    if name in PUBLISHED_SELECTIONS:
        return Detectron2Config(name)
    if not name.endswith(_ENDINGS) or Path(name).is_dir():
        return None
    if not Path(name).is_file():
        raise ValueError(f"detector {name!r}: no such file; a detectron2 config ends in .yaml")
    return Detectron2Config(str(Path(name).resolve()))


DEFAULT_SELECTION = "butd-10-100"  # of a detector without a preset
_T = TypeVar("_T")


@dataclass(frozen=True)
class ChosenDetector:
    """A detector that is not built yet.

    Attributes:
        config, conventions, selection: the network, its arithmetic, and its kept regions.
        weights: see `load_weights`.
        class_names, attribute_names: in id order, of a folder; None if the choice brings no names.
        preset: the preset, apart from `overrides`; None for a detector without one.
        overrides: parts "detector", "conventions" and "selection" that were named one by one, with their names.
        is_folder: whether it has weights and names of its own.
    """

    config: DetectorConfig
    conventions: Conventions
    selection: SelectionPolicy
    weights: str
    class_names: tuple[str, ...] | None = None
    attribute_names: tuple[str, ...] | None = None
    preset: ExtractorPreset | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    is_folder: bool = False


def choose_detector(
    detector: str | Path | DetectorConfig | None = None,
    *,
    preset: str | None = None,
    conventions: str | Conventions | None = None,
    selection: str | SelectionPolicy | None = None,
    weights: str | Path | None = None,
) -> ChosenDetector:
    """The detector for these names together.

    A detector's folder and the shipped detector bring conventions, weights and names of their own; R2C's network
    computes as R2C, the small test network and sizes of one's own as "hf". Otherwise a preset sets the rest, by default
    "butd-10-100".

    Args:
        detector: name of a shipped detector, a detector's folder, name in `CONFIGS`, or sizes of one's own.
        preset: name in `PRESETS`.
        conventions, selection: a name in `CONVENTIONS`, `SELECTIONS`, or one's own.
        weights: as `load_weights` takes them; None means those of the folder.
    Raises:
        ValueError: for an unknown name, a folder that is no detector's, a preset beside a detector that has conventions
            of its own, or missing weights.
    """
    if detectron2_config(detector) is not None:
        raise ValueError(
            f"detector {str(detector)!r} is a network of detectron2's, which `roibeam extract` alone takes; take "
            f"another one here"
        )
    named_preset = None if preset is None else named("preset", preset, PRESETS)
    named_conventions = None if conventions is None else named("conventions", conventions, CONVENTIONS)
    named_selection = named("selection", DEFAULT_SELECTION if selection is None else selection, SELECTIONS)
    folder = _folder(detector)
    config = CONFIGS.get(detector) if isinstance(detector, str) else detector
    is_of_presets = detector is None or (folder is None and detector in PRESET_SIZES)
    if named_preset is not None and not is_of_presets and not isinstance(detector, DetectorConfig):
        raise ValueError(
            f"preset {preset} does not go with the detector {detector}, which has sizes and conventions of its own; "
            f"leave one of the two out"
        )
    if folder is not None:
        return ChosenDetector(
            folder.config, named_conventions or folder.conventions, named_selection, str(weights or folder.weights),
            folder.class_names, folder.attribute_names or None, is_folder=True,
        )  # fmt: skip
    used = named_preset or (PRESETS[DEFAULT_PRESET] if is_of_presets else None)
    if weights is None:
        what = detector if isinstance(detector, str) else f"preset {used.name}" if used else "a config"
        raise ValueError(
            f"weights are missing: {what} brings none; give a weight file (--weights FILE, docs/detectors.md), or take "
            f"the detector {next(iter(SHIPPED))}, which brings its own"
        )
    if used is None:
        assert isinstance(config, DetectorConfig)
        own = CONVENTIONS_OF_SIZES.get(detector, "hf") if isinstance(detector, str) else "hf"
        return ChosenDetector(config, named_conventions or CONVENTIONS[own], named_selection, str(weights))
    given = {"detector": detector, "conventions": conventions, "selection": selection}
    return ChosenDetector(
        config if isinstance(config, DetectorConfig) else CONFIGS[used.detector],
        named_conventions or CONVENTIONS[used.conventions],
        SELECTIONS[used.selection] if selection is None else named_selection,
        str(weights),
        preset=used,
        overrides=tuple(
            (part, value if isinstance(value, str) else "of one's own")
            for part, value in given.items()
            if value not in (None, getattr(used, part))
        ),
    )


def named(what: str, name: str | _T, known: Mapping[str, _T]) -> _T:
    """The value of that name; anything but a name is returned unchanged.

    Raises:
        ValueError: naming the known ones.
    """
    if not isinstance(name, str):
        return name
    if name not in known:
        raise ValueError(f"{what} {name!r} is unknown; {name_hint(name, known)}")
    return known[name]


def _folder(detector: str | Path | DetectorConfig | None) -> DetectorFolder | None:
    """A detector's folder; None for the name of sizes, and for sizes."""
    if detector is None or isinstance(detector, DetectorConfig):
        return None
    if str(detector) in SHIPPED or (str(detector) not in CONFIGS and Path(detector).exists()):
        return read_detector_folder(detector)
    if str(detector) not in CONFIGS:
        hint = name_hint(str(detector), list(dict.fromkeys([*SHIPPED, *CONFIGS, *PUBLISHED_SELECTIONS])))
        raise ValueError(f"detector {str(detector)!r} is unknown: no such folder; {hint}")
    return None
