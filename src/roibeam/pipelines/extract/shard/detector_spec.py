"""Detector and run as plain picklable data: what a worker is sent, and what a store records. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.fast.modes import mode_named
from roibeam.extraction.network.config import DetectorConfig, written_settings
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions, SelectionPolicy
from roibeam.extraction.weights.detector_choice import Detectron2Config
from roibeam.extraction.weights.named_model import MODES, NamedModel

_T = TypeVar("_T")


@dataclass(frozen=True)
class DetectorSpec:
    """Specification of a run's detector.

    Attributes:
        config: network sizes, or a network of another library; None where given boxes have a backbone alone.
        selection: rule of the regions that are kept.
        weights: see `roibeam.extraction.weights.loading`.
        device: "cpu", "cuda:1", ..., or "cuda": where there are several, each process takes its own.
        threads: CPU threads of one detector call; None means what torch chooses.
        conventions: of its computation; a network of detectron2's has its own, which are nearest to "d2".
        mode: "exact" or a faster one, see `roibeam.extraction.fast.modes`.
        given_boxes: see `build_detector`.
        backbone: what makes the vectors, opened; None: the detector.
    """

    config: DetectorConfig | Detectron2Config | NamedModel | None
    selection: SelectionPolicy
    weights: str
    device: str = "cpu"
    threads: int | None = None
    conventions: Conventions = CONVENTIONS["hf"]
    mode: str = "exact"
    given_boxes: bool = False
    backbone: NamedModel | None = None

    def __post_init__(self) -> None:
        mode_named(self.mode, self.device)
        if isinstance(self.config, Detectron2Config) and self.mode != "exact":
            raise ValueError(f"mode {self.mode}: a network of detectron2's computes in float32; leave --precision out")
        if self.models and self.mode not in MODES:
            raise ValueError(f"mode {self.mode}: {self.models[0].name} takes one photo at a time; leave --batched out")

    @property
    def models(self) -> tuple[NamedModel, ...]:
        """Detector and backbone that are of other libraries."""
        return tuple(model for model in (self.config, self.backbone) if isinstance(model, NamedModel))

    def to_json(self) -> dict[str, Any]:
        """JSON that `from_json` reads. It names models of other libraries, but not how to run them."""
        parts = {}
        for name in ("config", "selection", "conventions", "backbone"):
            if (value := getattr(self, name)) is not None:
                parts[name] = value.recorded() if isinstance(value, NamedModel) else written_settings(value)
        found = asdict(self) | parts
        if self.backbone is None:  # earlier versions do not know it
            del found["backbone"]
        return found

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Self:
        """The spec that a store's manifest records (`config.detector`), as `to_json` gave it."""
        config = recorded.get("config") or {}
        of_config = Detectron2Config if "file" in config else NamedModel if "name" in config else DetectorConfig
        inner: dict[str, type[Any]] = {
            "config": of_config, "selection": SelectionPolicy, "conventions": Conventions, "backbone": NamedModel
        }  # fmt: skip
        parts: dict[str, Any] = {
            name: dataclass_from_json(kind, recorded.get(name), name)
            for name, kind in inner.items()
            if name in ("selection", "conventions") or recorded.get(name) is not None
        }
        return dataclass_from_json(cls, {**recorded, **parts}, "detector")


def dataclass_from_json(kind: type[_T], recorded: Any, name: str) -> _T:
    """A config dataclass from the JSON that its `asdict` became; lists are tuples again.

    A field that is not recorded has its default: an earlier version did not know it.

    Args:
        name: what errors call the part.
    """
    if not isinstance(recorded, Mapping):
        raise ValueError(f"the recorded {name} is {type(recorded).__name__}, expected an object")
    unknown = sorted(set(recorded) - {field.name for field in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"the recorded {name} has the field {unknown[0]!r}; was it written by a newer roibeam?")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in recorded.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"the recorded {name}: {error}") from None


@dataclass(frozen=True)
class ExtractJob:
    """One extraction run as its workers see it.

    Attributes:
        store: absolute path of the store, or its URL.
        image_root: folder that must be there: when it is gone, images that are "not found" are not their own fault.
        detector, options: how images become records.
        feature_space: what the driver computed; a worker whose detector differs stops.
        vocabulary_digest: of the class and attribute names, or None for bare ids.
        given_boxes: whether the planned images bring their boxes.
        scratch: folder of the worker in which shards of a store at a URL are written before they are uploaded; None
            for its temporary folder.
    """

    store: str
    image_root: str
    detector: DetectorSpec
    options: ExtractOptions
    feature_space: str
    vocabulary_digest: str | None
    given_boxes: bool
    scratch: str | None = None
