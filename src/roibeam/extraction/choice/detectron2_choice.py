"""detectron2's networks by name: what `roibeam extract --detector` takes beside our own. No torch, no detectron2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# Names of ../detectron2/published.py, and the regions that were kept of each.
PUBLISHED_SELECTIONS: Mapping[str, str] = MappingProxyType(
    {"mask-rcnn-r101-fpn": "visualbert-nlvr2", "pythia-x152-fpn": "maskrcnn-benchmark-100"}
)
_ENDINGS = (".yaml", ".yml")
_LAYERS = ("", "fc6", "fc7")


@dataclass(frozen=True)
class Detectron2Config:
    """Which network of detectron2's, in place of a `DetectorConfig`.

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
    """What `--detector` names, where that is a network of detectron2's; None for another.

    Raises:
        ValueError: for a YAML file that is not there.
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
