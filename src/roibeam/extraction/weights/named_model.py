"""Networks of other libraries by name, as `--detector` and `--backbone` take them. No torch.

    torchvision:NAME[@LAYER]                                        such as torchvision:resnet50@layer4
    hf:ID-or-folder[@REVISION][#tokens[:LAYER]|pooled|projection]   such as hf:facebook/dinov2-base#tokens
    python:FILE.py:FUNCTION                                         a function of one file

A name is opened once, by the command (`opened`): the code of a file is read, a repository is fetched and its revision
is fixed. Workers get the opened model. What a store records of it (`DetectorSpec.to_json`) has neither code nor folder,
so that nothing runs because a manifest says so.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

KINDS = ("torchvision", "hf", "python")
MODES = ("exact", "tf32", "bf16")  # of roibeam.extraction.fast.modes
POOLS = ("roi", "crop")
TORCHVISION_OWN = "default"  # in place of a weight file
_HF_PARTS = ("tokens", "pooled", "projection")
_MOST_TEXT = 2**20  # bytes of a user's file
_EXAMPLES = (
    "torchvision:fasterrcnn_resnet50_fpn, torchvision:resnet50@layer4, hf:facebook/detr-resnet-50, "
    "hf:facebook/dinov2-base#tokens, python:my_models.py:detect"
)


@dataclass(frozen=True)
class NamedModel:
    """A detector or a backbone of another library.

    Attributes:
        name: as at the top of this file.
        weights: of torchvision: a file, a URL, "random:SEED", or "default", torchvision's own, which are fetched.
        queries: texts that a zero-shot detector looks for.
        pool: of a backbone, "roi": the mean of RoIAlign on the map of the photo; "crop": a pass for each box, of the
            photo cut to it; "": the first that the model has.
        longest_side: pixels of the longest side of a photo or crop in the network; 0: what the model was made for.
        class_names: of a detector, in id order, where the user names them; they take the place of its own.
        folder, revision: of Hugging Face, opened: where its files are on this machine, and the commit.
        code, digest: of a file, opened: its text and the SHA-256 of that.
        license: as the model's card states it; "" if it states none.
    """

    name: str
    weights: str = ""
    queries: tuple[str, ...] = ()
    pool: str = ""
    longest_side: int = 0
    class_names: tuple[str, ...] | None = None
    folder: str = field(default="", repr=False)
    revision: str = ""
    code: str = field(default="", repr=False)
    digest: str = ""
    license: str = ""

    def __post_init__(self) -> None:
        if self.kind == "python" and (not self.part.isidentifier() or not self.target.endswith(".py")):
            raise ValueError(f"{self.name!r}: expected python:FILE.py:FUNCTION")
        if self.kind not in KINDS or not self.target:
            raise ValueError(f"{self.name!r} names no model; expected one such as {_EXAMPLES}")
        if self.kind == "hf" and self.part and self.part.partition(":")[0] not in _HF_PARTS:
            raise ValueError(f"{self.name!r}: after # comes one of {', '.join(_HF_PARTS)}, or tokens:LAYER")
        if self.pool and self.pool not in POOLS:
            raise ValueError(f"pool {self.pool!r}; choose one of {', '.join(POOLS)}")
        if self.weights and self.kind != "torchvision":
            raise ValueError(f"--weights {self.weights} does not go with {self.name}: it brings its own; leave it out")
        if self.queries and self.kind != "hf":
            raise ValueError(f"{self.name} looks for its own classes and takes no queries; leave them out")
        if self.longest_side < 0:
            raise ValueError(f"longest_side is {self.longest_side}; it must be a number of pixels, or 0")

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return self.name.partition(":")[0]

    @property
    def target(self) -> str:
        """A name in torchvision, a repository or folder, or a file."""
        return self._split()[0]

    @property
    def part(self) -> str:
        """Layer, or what of Hugging Face's outputs, or function; "" where none is named."""
        return self._split()[1]

    def _split(self) -> tuple[str, str]:
        rest = self.name.partition(":")[2]
        if self.kind == "python":
            file, _, function = rest.rpartition(":")
            return file, function
        target, _, part = rest.partition("@" if self.kind == "torchvision" else "#")
        if self.kind == "hf" and not Path(target).is_dir():
            target = target.partition("@")[0]
        return target, part

    def recorded(self) -> dict[str, Any]:
        """Record of it in a store's manifest: neither code nor folder, without fields that are not set."""
        unset = {each.name for each in fields(self) if getattr(self, each.name) == each.default}
        return {name: value for name, value in asdict(self).items() if name not in {"code", "folder", *unset}}

    def opened(self) -> NamedModel:
        """The same with what the name stands for: the text of a file; a repository's folder, revision and license.

        Raises:
            ValueError: if there is no such file, repository or model, or if it wants to run code of its own.
            OSError: if the network or the file system fails.
        """
        if self.kind == "python":
            code = _text(Path(self.target), self.name)
            return replace(self, code=code, digest=hashlib.sha256(code.encode()).hexdigest())
        found: NamedModel = self._library().open_model(self)
        return found

    def names(self) -> tuple[str, ...] | None:
        """Names of an opened detector's classes, in id order, without background and placeholders such as "N/A"; None
        where it has ids alone. No weights are read."""
        if self.class_names is not None:
            return self.class_names
        found: tuple[str, ...] | None = self._library(detects=True).class_names(self)
        return found

    def detector(self, device: str, mode: str) -> Any:
        """The `DetectionModel` of an opened name, see any_detector.py, with its weights on the device."""
        return self._library(detects=True).load_detector(self, device, mode)

    def backbone(self, device: str, mode: str) -> Any:
        """The `VisionNetwork` of an opened name, see any_detector.py, with its weights on the device."""
        return self._library().load_backbone(self, device, mode)

    def _library(self, *, detects: bool = False) -> Any:
        """The file of the library's models; of Hugging Face there are two."""
        if self.kind == "hf" and detects:
            return import_module("roibeam.extraction.adapters.hugging_face_detectors")
        files: dict[str, str] = {
            "torchvision": "roibeam.extraction.adapters.torchvision_models",
            "hf": "roibeam.extraction.adapters.hugging_face",
            "python": "roibeam.extraction.adapters.user_functions",
        }
        return import_module(files[self.kind])


class OtherModels(TypedDict, total=False):
    """Arguments of `build_detector` and `roibeam.extract`, as the command has them: where the vectors come from.

    Attributes:
        backbone, backbone_weights, pool: as `NamedModel.name`, `weights` and `pool`.
        queries: texts that a zero-shot detector looks for; the path of a file with one a line.
    """

    backbone: str
    backbone_weights: str
    pool: str
    queries: str | Path


def is_named_model(name: object) -> bool:
    """Whether `--detector` or `--backbone` names a model of another library."""
    return isinstance(name, str) and name.partition(":")[0] in KINDS and ":" in name


def read_queries(path: str | Path) -> tuple[str, ...]:
    """Queries of a zero-shot detector: the lines of a file, without empty ones.

    Raises:
        ValueError: for a file without a line, or with a line that comes twice.
    """
    lines = tuple(line.strip() for line in _text(Path(path), f"--queries {path}").splitlines() if line.strip())
    if not lines:
        raise ValueError(f"--queries {path}: has no line; write one query a line, such as: a red car")
    if doubled := next((line for at, line in enumerate(lines) if line in lines[:at]), None):
        raise ValueError(f"--queries {path}: the line {doubled!r} comes twice")
    return lines


def _text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_TEXT + 1)
    except OSError as error:
        raise ValueError(f"{what}: {error.strerror}; name a text file") from None
    if len(data) > _MOST_TEXT:
        raise ValueError(f"{what}: has more than {_MOST_TEXT:,} bytes; it travels to workers, so keep it small")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{what}: is no UTF-8 text") from None
