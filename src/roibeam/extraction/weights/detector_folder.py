"""Detector folder: written by `roibeam detector train`, taken by `roibeam extract --detector`. No torch.

config.json          sizes, conventions, names of classes and attributes
model.safetensors    weights in Hugging Face names, float32 or float16
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
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
        config, conventions: the network and its arithmetic.
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
    """Content of `config.json`.

    Raises:
        ValueError: if there are not as many names as the detector has classes and attributes.
    """
    _check_names(config, class_names, attribute_names, "a detector")
    return {
        "format": _FORMAT,
        "detector": asdict(config),
        "conventions": asdict(conventions),
        "class_names": list(class_names),
        "attribute_names": list(attribute_names),
    }


def read_detector_folder(folder: str | Path) -> DetectorFolder:
    """Reads `config.json` and checks that the weights exist.

    Args:
        folder: a path, or the name of a shipped detector (`SHIPPED`).
    Raises:
        ValueError: naming the file, its fault and the expectation.
    """
    place = SHIPPED.get(str(folder), Path(folder).expanduser())
    path, weights = place / CONFIG_NAME, place / WEIGHTS_NAME
    if not place.exists():
        raise ValueError(f"detector {str(folder)!r} is unknown: no such folder; {name_hint(str(folder), [*SHIPPED])}")
    for needed in (path, weights):
        if not needed.is_file():
            raise ValueError(
                f"detector {str(folder)!r}: {needed.name} is missing; a detector's folder holds {CONFIG_NAME} and "
                f"{WEIGHTS_NAME}, such as RUN/checkpoints/step-00001000/model of `roibeam detector train`"
            )
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ValueError(f"{path}: over {_MAX_CONFIG_BYTES} bytes; it is no detector's config.json")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: not json; a detector's config.json is written by `roibeam detector train`") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError(
            f'{path}: expected a detector\'s config.json with "format": {_FORMAT}; is it of another model, or of a '
            f"newer roibeam?"
        )
    config = dataclass_of(found, "detector", DetectorConfig, path)
    conventions = dataclass_of(found, "conventions", Conventions, path)
    return DetectorFolder(config, conventions, *detector_names(found, config, path), weights=str(weights))


def is_detector_folder(weights: str | Path) -> bool:
    """Whether weights are given as a folder, or as the name of a shipped detector."""
    return str(weights) in SHIPPED or Path(weights).expanduser().is_dir()


def conventions_beside(weights: Path) -> Conventions | None:
    """Conventions of the detector's folder that holds this weight file, which set the meaning of the rows of its heads;
    None for a file of no such folder.

    Raises:
        ValueError: for a damaged config.json of a detector.
    """
    path = weights.parent / CONFIG_NAME
    if weights.name != WEIGHTS_NAME or not path.is_file() or path.stat().st_size > _MAX_CONFIG_BYTES:
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not {"detector", "conventions"} <= found.keys():
        return None  # of another model, such as Hugging Face's
    return dataclass_of(found, "conventions", Conventions, path)


def detector_names(found: Any, config: DetectorConfig, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`class_names` and `attribute_names` of a file's JSON.

    Raises:
        ValueError: naming `path`, if they are no lists of names, or not as many as the detector has.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected class_names and attribute_names, got a {type(found).__name__}")
    classes, attributes = _names(found, "class_names", path), _names(found, "attribute_names", path)
    _check_names(config, classes, attributes, str(path))
    return classes, attributes


def dataclass_of(found: Mapping[str, Any], name: str, kind: type[_T], path: Path) -> _T:
    """The section `name` of a file's JSON as a dataclass of numbers, words and tuples.

    Raises:
        ValueError: naming `path`, if the section has not exactly its fields, or values that it refuses.
    """
    section = found.get(name)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(section, dict) or set(section) != known:
        odd = sorted(set(section) ^ known) if isinstance(section, dict) else []
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
