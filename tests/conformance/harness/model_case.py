"""One case of a family of models: an .npz with `config` (JSON), `param/`, `in/`, `out/` and `grad/` arrays.

What a family adds: which model the parameters are, what goes in, and by which names its outputs go.
"""

import functools
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from harness.case_files import ArrayError, Arrays
from harness.checks import Case, Check, Family, OpenFolder, close, failed, numpy_of, unread, within
from harness.tolerances import MODELS
from roibeam.model.inputs import VLBatch

CONFIG = "config"
GRADIENT_NORM = "out/grad_norm_total"
GRADIENT_ROWS = 4  # what a reference keeps of a matrix
MAX_OPTION = 1 << 24  # no size in a case's options passes it; a model this wide could not be held

Output = Tensor | None | Callable[[], Tensor]  # there already, not given by this model, or computed when asked for
Outputs = dict[str, Output]  # by official name
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class ModelArrays(Arrays):
    """The arrays of one case, as tensors, with their ranges checked: torch would crash on a wrong index.

    Args:
        config: name of the array that holds the options.
    """

    def __init__(self, path: Path, config: str = CONFIG) -> None:
        super().__init__(path)
        self.options: dict[str, Any] = self.json(config)
        if not isinstance(self.options, dict):
            raise ArrayError(config, f"holds a {type(self.options).__name__}, expected an object of names and values")

    def parameters(self) -> dict[str, Tensor]:
        """float32, by official name."""
        return {name: self.floats(f"param/{name}") for name in self.below("param/")}

    def floats(self, name: str, *shape: int | None) -> Tensor:
        return torch.from_numpy(np.array(self.take_finite(name, *shape), dtype=np.float32))

    def whole(self, name: str, low: int, high: int, *shape: int | None) -> Tensor:
        """int64, low <= number < high."""
        array = self.take(name, *shape)
        if array.dtype.kind not in "biu" or (array.size and (array.min() < low or array.max() >= high)):
            raise ArrayError(name, f"must hold whole numbers from {low} to {high - 1}")
        return torch.from_numpy(array.astype(np.int64))

    def target(self, name: str) -> Tensor:
        """float64, or int64 where the file has whole numbers."""
        target = torch.from_numpy(self.take_finite(name).copy())
        return target.double() if target.is_floating_point() else target.long()

    def mask(self, name: str, *shape: int | None) -> Tensor:
        """bool; the file holds 1 and 0."""
        return self.whole(name, 0, 2, *shape).bool()


def computed(output: Output) -> Tensor:
    """Raises ValueError for one that the model does not give."""
    tensor = output() if callable(output) else output
    if tensor is None:
        raise ValueError("this model gives no such output")
    return tensor


def check_sizes(options: Mapping[str, Any], num_parameters: int) -> None:
    """Refuses options that would fill the memory before any parameter is looked at. Raises ValueError naming the
    option."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        largest = num_parameters if "layers" in name else MAX_OPTION
        if not 0 <= value <= largest:
            raise ValueError(f"config: {name} is {value}; expected 0 to {largest} in a case like this")


def output_checks(arrays: ModelArrays, outputs: Outputs) -> Iterator[Check]:
    """Every "out/" array but the gradient norm against the output of that name."""
    for name in arrays.below("out/"):
        full = f"out/{name}"
        if full == GRADIENT_NORM:
            continue
        want = arrays.take(full)
        if name not in outputs:
            yield failed(full, "unknown output: nothing was compared with it")
            continue
        yield close(full, numpy_of(computed(outputs[name])), want, MODELS.values)


def gradient_checks(
    arrays: ModelArrays, model: nn.Module, total: Output, our_name: Callable[[str], str]
) -> Iterator[Check]:
    """Every "grad/" array, and the norm of all gradients, of the loss `total`."""
    names = arrays.below("grad/")
    if not names and GRADIENT_NORM not in arrays:
        return
    model.zero_grad()
    computed(total).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name in names:
        want = arrays.take(f"grad/{name}")
        gradient = gradients.get(our_name(name))
        if gradient is None:
            yield failed(f"grad/{name}", "no gradient of ours reaches this parameter")
            continue
        yield close(
            f"grad/{name}", numpy_of(gradient[:GRADIENT_ROWS] if gradient.ndim > 1 else gradient), want, MODELS.values
        )
    if GRADIENT_NORM in arrays:
        norm = float(arrays.take_finite(GRADIENT_NORM))
        ours = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
        yield within(GRADIENT_NORM, abs(ours - norm) / abs(norm or 1.0), MODELS.gradient_norm, "relative")


def batch_of(text: tuple[Tensor, ...], image: tuple[Tensor, ...], image_hw: Tensor, **more: Any) -> VLBatch:
    """A batch whose regions stand behind the whole image, none of them masked.

    Args:
        text: ids, mask and segments.
        image: features, boxes (more columns are left out) and mask of all elements.
        more: further fields.
    """
    (ids, text_mask, segments), (features, boxes, mask) = text, image
    return VLBatch(
        text_ids=ids,
        text_mask=text_mask,
        text_segments=segments,
        region_features=features[:, 1:],
        region_boxes=boxes[:, 1:, :4],
        region_mask=mask[:, 1:],
        image_hw=image_hw,
        whole_image_features=features[:, 0],
        **{"masked_regions": torch.zeros_like(mask[:, 1:]), **more},
    )


def model_family(
    name: str, marks: tuple[str, ...], run: Callable[[ModelArrays], Iterable[Check]], *, config: str = CONFIG
) -> Family:
    """A family of cases with the options and parameters of a model.

    Args:
        marks: array names that start so tell its files apart from other families'.
        run: compares one case; what it leaves unread fails as unknown.
        config: name of the array that holds a case's options.
    """

    def checks(path: Path) -> Iterator[Check]:
        arrays = ModelArrays(path, config)
        yield from run(arrays)
        yield from unread(arrays)

    return npz_family(name, checks, lambda names: any(each.startswith(marks) for each in names))


def npz_family(name: str, checks: Callable[[Path], Iterable[Check]], is_own: Callable[[Sequence[str]], bool]) -> Family:
    """A family whose folder holds nothing but .npz cases.

    Args:
        is_own: whether a file with members of these names, "<array>.npy", is one of its cases.
    """

    def open_folder(folder: Path) -> OpenFolder:
        files = sorted(path for path in folder.glob("*.npz") if not path.name.startswith("."))
        return OpenFolder(tuple(Case(path.name, functools.partial(checks, path)) for path in files), frozenset())

    def recognises(folder: Path) -> bool:
        return any(is_own(_array_names(path)) for path in sorted(folder.glob("*.npz")))

    return Family(name, recognises, open_folder)


def _array_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return []  # running the case reports the fault
