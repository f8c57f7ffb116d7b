"""Choice of a detector by names: preset, detector or its folder, conventions, selection and weights.

Presets are the published extractors: one network, with the conventions, photo size and regions that each was used with.
docs/presets.md has where each came from, and why one was chosen where a paper and its code differ. `--detector` takes
detectron2's networks by name too, and folders that `roibeam detector train` wrote:

    config.json          sizes, conventions, names of classes and attributes
    model.safetensors    weights in Hugging Face names, float32 or float16

No torch, no detectron2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from roibeam.extraction.network.config import CONFIGS, DetectorConfig, written_settings
from roibeam.extraction.network.conventions import (
    CONVENTIONS,
    CONVENTIONS_OF_SIZES,
    SELECTIONS,
    Conventions,
    SelectionPolicy,
)
from roibeam.extraction.weights.named_model import is_named_model
from roibeam.messages import name_hint

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
# Detectors that come with the project, by name.
SHIPPED = MappingProxyType({"toy": Path(__file__).parents[1] / "toy_detector"})
_FORMAT = 1
_MAX_CONFIG_BYTES = 16 * 2**20  # 65,534 names of 200 bytes
_T = TypeVar("_T")


@dataclass(frozen=True)
class DetectorFolder:
    """Content of a detector's folder.

    Attributes:
        class_names, attribute_names: in id order.
        weights: path of the weight file, see `load_weights`.
    """

    config: DetectorConfig
    conventions: Conventions
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    weights: str


def describe_detector(
    config: DetectorConfig, conventions: Conventions, class_names: Sequence[str], attribute_names: Sequence[str]
) -> dict[str, Any]:
    """Content of `config.json`."""
    _check_names(config, class_names, attribute_names, "a detector")
    return {
        "format": _FORMAT,
        "detector": written_settings(config),
        "conventions": written_settings(conventions),
        "class_names": list(class_names),
        "attribute_names": list(attribute_names),
    }


def read_detector_folder(folder: str | Path) -> DetectorFolder:
    """Reads `config.json` of a folder, of a shipped detector (`SHIPPED`), of a checkpoint, or of the newest one
    of a run of `roibeam detector train`, and checks that the weights exist."""
    place = SHIPPED.get(str(folder), Path(folder).expanduser())
    if not (place / WEIGHTS_NAME).is_file():
        place = (
            place / "model"
            if (place / "model").is_dir()
            else max(place.glob("checkpoints/step-*/model"), default=place)
        )
    path, weights = place / CONFIG_NAME, place / WEIGHTS_NAME
    if not place.exists():
        raise ValueError(f"detector {str(folder)!r} is unknown: no such folder; {name_hint(str(folder), [*SHIPPED])}")
    for needed in (path, weights):
        if not needed.is_file():
            raise ValueError(
                f"detector {str(folder)!r}: {needed.name} is missing; a detector's folder holds {CONFIG_NAME} and "
                f"{WEIGHTS_NAME}, as a run of `roibeam detector train` does in checkpoints/step-00001000/model"
            )
    found = _config_file(path)
    config = dataclass_of(found, "detector", DetectorConfig, path)
    conventions = dataclass_of(found, "conventions", Conventions, path)
    return DetectorFolder(config, conventions, *detector_names(found, config, path), weights=str(weights))


def _config_file(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ValueError(f"{path}: over {_MAX_CONFIG_BYTES} bytes; it is no detector's config.json")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: not json; a detector's config.json is written by `roibeam detector train`") from None
    if isinstance(found, dict) and "global_batch" in found and "format" not in found:
        raise ValueError(
            f"{path}: of a training run, not of a detector; give toy, or a run of `roibeam detector train`"
        )
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError(
            f'{path}: expected a detector\'s config.json with "format": {_FORMAT}; is it of another model, or of a '
            f"newer roibeam?"
        )
    return found


def is_detector_folder(weights: str | Path) -> bool:
    """Whether weights are given as a folder, or as the name of a shipped detector."""
    return str(weights) in SHIPPED or Path(weights).expanduser().is_dir()


def conventions_beside(weights: Path) -> Conventions | None:
    """Conventions of the detector's folder that holds this weight file, which set the meaning of the rows of its heads;
    None for a file of no such folder.
    """
    path = weights.parent / CONFIG_NAME
    if weights.name != WEIGHTS_NAME or not path.is_file():
        return None
    try:
        found = _config_file(path)
    except ValueError:
        return None  # of another model, such as Hugging Face's
    is_ours = {"detector", "conventions"} <= found.keys()
    return dataclass_of(found, "conventions", Conventions, path) if is_ours else None


def detector_names(found: Any, config: DetectorConfig, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`class_names` and `attribute_names` of a file's JSON."""
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected class_names and attribute_names, got a {type(found).__name__}")
    classes, attributes = _names(found, "class_names", path), _names(found, "attribute_names", path)
    _check_names(config, classes, attributes, str(path))
    return classes, attributes


def dataclass_of(found: Mapping[str, Any], name: str, kind: type[_T], path: Path) -> _T:
    """The section `name` of a file's JSON as a dataclass of numbers, words and tuples."""
    section = found.get(name)
    known = {field.name: "added" in field.metadata for field in fields(kind)}  # type: ignore[arg-type]
    odd = sorted(name for name in set(section) ^ set(known) if not known.get(name)) if isinstance(section, dict) else []
    if not isinstance(section, dict) or odd:
        raise ValueError(
            f"{path}: {name!r} must have the fields of {kind.__name__}"
            + (f"; missing or unknown: {', '.join(map(repr, odd[:5]))}" if odd else "")
        )
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in section.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {name}: {error}") from None


def _names(found: Mapping[str, Any], name: str, path: Path) -> tuple[str, ...]:
    names = found.get(name)
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise ValueError(f"{path}: {name!r} must be a list of names")
    return tuple(names)


def _check_names(config: DetectorConfig, classes: Sequence[str], attributes: Sequence[str], source: str) -> None:
    wanted = (config.num_classes, config.num_attributes)
    if (len(classes), len(attributes)) != wanted:
        raise ValueError(
            f"{source}: {len(classes)} class and {len(attributes)} attribute names for a detector of {wanted[0]} "
            f"classes and {wanted[1]} attributes"
        )


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
            ExtractorPreset(
                "milvlg-36", "the same, its k36 weights, 36 regions", "vg-r101-c4-600", "milvlg", "milvlg-36"
            ),
            ExtractorPreset(
                "milvlg-r152", "the same, its R152, 100 regions", "vg-r152-c4-600", "milvlg-r152", "milvlg-100"
            ),
            *(
                ExtractorPreset(
                    f"milvlg-d2-{net}",
                    f"the same, d2 mode, {net.upper()}",
                    f"milvlg-d2-{net}",
                    conventions,
                    "milvlg-d2",
                )
                for net, conventions in (("r50", "milvlg-d2"), ("r101", "milvlg-d2"), ("x152", "milvlg-d2-x152"))
            ),
            # As Microsoft's released features were made; the demo's boxes are regressed, the features are not.
            ExtractorPreset("vinvl", "VinVL (arXiv:2101.00529), released features", "vinvl-x152-c4", "vinvl", "vinvl"),
            ExtractorPreset("vinvl-demo", "VinVL's demo, and MMF", "vinvl-x152-c4", "vinvl", "vinvl-demo"),
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


# Names of ../adapters/detectron2_vg.py, and the kept regions of each.
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
    """The detectron2 network that `--detector` names; None for another."""
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
    if is_named_model(detector) or detectron2_config(detector) is not None:
        raise ValueError(
            f"detector {str(detector)!r} is of another library, which `roibeam extract`, `look` and `probe` take; here "
            f"it must be one of the Visual Genome family: toy, a folder, or sizes"
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
    used = named_preset or (_usual_preset(detector) if is_of_presets else None)
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


def _usual_preset(detector: object) -> ExtractorPreset:
    """The default one, or the first of sizes that have conventions of their own."""
    own = (preset for preset in PRESETS.values() if preset.detector == detector in CONVENTIONS_OF_SIZES)
    return next(own, PRESETS[DEFAULT_PRESET])


def named(what: str, name: str | _T, known: Mapping[str, _T]) -> _T:
    """The value of a known name; anything but a name is returned unchanged."""
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
        hint += "; names of other libraries' models begin with torchvision:, hf: or python:"
        raise ValueError(f"detector {str(detector)!r} is unknown: no such folder; {hint}")
    return None
