"""Settings and output paths of evaluations and attention analyses, without torch.

Results go to the folder of the evaluated run, or to the path that the user gives. Nothing is replaced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType

from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.requests import AttentionRequest, EvaluateRequest, ProbeRequest
from roibeam.pipelines.common.compute import check_device_name
from roibeam.pipelines.common.console.command_files import FILE, NamedFiles
from roibeam.pipelines.data.compatibility import check_least
from roibeam.pipelines.data.datasets.entities import OWN, RELEASE
from roibeam.pipelines.data.vocabulary import check_background
from roibeam.pipelines.training.model_files.model_folder import check_model_files, check_tokenizer_file, found_model
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.run_folder.files import STAGES_NAME
from roibeam.pipelines.training.train_config import FLOAT32, check_precision


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation.

    Attributes:
        seed: of masks, mismatched images, the subset of images, and the draws of the intervals.
        batch_size: captions, and pairs of retrieval, at once.
        max_images: a subset of so many images with their captions; 0 = all.
        max_regions: of an image, those with the best scores; 0 = all.
        retrieval: whether all pairs are scored.
        folds: parts of the images that are searched by themselves.
        task: number of the task token, for a model with such tokens.
        background: where the model's classes have it: first, last or none; None: last.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:<n>".
        precision: "float32", or "bf16" or "fp16", in which the layers compute; scores of pairs are float32.
    """

    seed: int = 0
    batch_size: int = 64
    max_images: int = 0
    max_regions: int = 0
    retrieval: bool = True
    folds: int = 1
    task: int | None = None
    background: str | None = None
    device: str = "auto"
    precision: str = FLOAT32

    def __post_init__(self) -> None:
        check_least(self, seed=0, batch_size=1, max_images=0, max_regions=0, folds=1)
        check_background(self.background)
        check_precision(self.precision)
        check_device_name(self.device)
        if self.folds > 1 and not self.retrieval:
            raise ValueError("folds are of retrieval; leave them out, or retrieval in")


SOURCE_WORDS = ("last", "first", "mean", "head")
# By name: location of a phrase, and which box is right.
RULES: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {"any": (OWN, "any"), "merged": (OWN, "merged"), "release": (RELEASE, "any")}
)


def default_output_path(checkpoint: str, given: Path | None, name: str) -> Path:
    """Returns `given`, else the first of RUN/evaluation, RUN/evaluation-2, ... that is not there yet.

    Args:
        checkpoint: as of `load_model`.
        name: of a folder or file, such as "evaluation" or "probe.svg".
    Raises:
        ValueError: when `given` is None and the checkpoint is no run's folder, or when something is there.
    """
    if given is not None:
        check_new(given)
        return given
    run = Path(checkpoint).expanduser()
    if not (run / "checkpoints").is_dir() and not (run / STAGES_NAME).is_file():
        raise ValueError(f"{checkpoint} is no run's folder: name the folder to write with --out, such as --out {name}")
    for number in count(1):
        place = (run / name).with_stem(Path(name).stem if number == 1 else f"{Path(name).stem}-{number}")
        if not _is_there(place):
            return place
    raise AssertionError("numbers do not end")


def check_new(out: Path) -> None:
    """Raises ValueError for a file, or a folder with something in it."""
    if _is_there(out):
        what = f"is not empty ({min(each.name for each in out.iterdir())!r} is in it)" if out.is_dir() else "is a file"
        raise ValueError(f"{out} is there already and {what}; nothing is replaced, name another one")


def named_model(request: EvaluateRequest | AttentionRequest | ProbeRequest) -> tuple[NamedFiles, bool, bool]:
    """Looks for the files that every request names. Returns what was found so far, and whether checkpoint and store are
    there."""
    named = NamedFiles()
    has_checkpoint, has_store = named.need("CHECKPOINT", request.checkpoint), named.need("--store", request.store)
    named.need("--config", request.config, FILE)
    named.need("--tokenizer", request.tokenizer)
    named.look(lambda: check_tokenizer_file(request.tokenizer))
    if has_checkpoint:
        named.look(lambda: check_model_files(request.checkpoint))
    return named, has_checkpoint, has_store


def checked_output(
    named: NamedFiles, request: EvaluateRequest | AttentionRequest, name: str, *, has_checkpoint: bool
) -> Path:
    """Ends the checks of a request with checkpoint, store and output folder; returns this.

    Args:
        named: with what was found so far; raised are all errors together.
        name: of `default_output_path`.
    """
    out = None
    if has_checkpoint:
        out = named.look(lambda: default_output_path(request.checkpoint, request.out, name))
    named.check()
    assert out is not None
    model = found_model(request.checkpoint)
    if model is not None:
        with FeatureStore(request.store) as store:
            check_feature_space(model, store)
    return out


@contextmanager
def removed_on_failure(*places: Path) -> Iterator[None]:
    """Removes files, or those in folders, when the block fails, so that the same command can run again."""
    try:
        yield
    except BaseException:
        for place in places:
            for file in place.iterdir() if place.is_dir() else (place,):
                file.unlink(missing_ok=True)
        raise


def _is_there(place: Path) -> bool:
    return any(place.iterdir()) if place.is_dir() else place.exists()
