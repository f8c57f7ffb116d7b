"""Shared part of all training requests, and the request of a detector's training: plain data, options of commands.

Importing this is cheap: it opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from roibeam.messages import check_lists
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    END_TO_END,
    INPUT,
    SPEED,
    TRAINING,
    Device,
    Seed,
    Threads,
    option,
    renamed,
)
from roibeam.pipelines.training.train_config import DRY_RUN, PRECISION_NAMES, Resume, check_precision

SYSTEMS = "vlbert, vilbert, vilbert-single-stream, visualbert, imagebert or interbert"
_DETECTORS = "toy, a run of `roibeam detector train`, or a network: vg-r101-c4-600, vinvl-x152-c4, r2c-r50, others."
_WEIGHTS = "Weights of the detector: a file, a URL, hf:REPO or random:SEED."
_CONVENTIONS = "Published extractor to reproduce exactly: hf, d2, caffe, milvlg, vinvl, vlbert-e2e and others."
_PRECISION = "train.precision"

Precision = Annotated[str | None, option(
    "Number type that the network computes in: float32, bf16 or fp16.", "TYPE", SPEED,
    default="that of the recipe, else float32",
)]  # fmt: skip


def named_step(value: Any) -> Any:
    """Returns the checkpoint, or None, that an option names, with its step in place of "best"; a path stays one."""
    from roibeam.pipelines.training.run_folder.folder import named_checkpoint

    return value if value is None else type(value)(named_checkpoint(str(value)))


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training of any kind. A command that has other steps, batches or sections of settings says so."""

    steps: Annotated[int | None, option(
        "Number of optimizer steps.", "N", TRAINING, min=1, default="1,000; those of the run if one is continued",
    )] = None  # fmt: skip
    seed: Seed = 0
    resume: Annotated[bool | None, option(
        "Continue from the newest checkpoint; --no-resume refuses a folder that holds a run.", "", TRAINING,
        default="continue if OUT holds this run",
    )] = None  # fmt: skip
    resume_from: Annotated[str | None, option(
        "Continue from this checkpoint, such as step-2000; later ones are removed.", "STEP", TRAINING,
        default="the newest", advanced=True,
    )] = None  # fmt: skip
    dry_run: Annotated[bool, option("Show data, steps, memory and time of three steps; write nothing.")] = False
    set: Annotated[Sequence[str], option(
        "Change one setting, as section.field=value; may be given several times.",
        "FIELD=VALUE", TRAINING,
    )] = ()  # fmt: skip
    device: Device = "auto"
    precision: Precision = None
    threads: Threads = None

    def __post_init__(self) -> None:
        check_lists(self, "set")
        if isinstance(self.resume, str):
            raise TypeError(f"{type(self).__name__}: the checkpoint to go on from is called resume_from now")

    @property
    def resume_choice(self) -> Resume:
        """Start of the run, see `train`; ValueError where --resume-from and --no-resume contradict each other."""
        if self.resume_from is not None and self.resume is False:
            raise ValueError("--no-resume and --resume-from contradict each other; give one of them")
        if self.dry_run and self.resume_from is not None:
            raise ValueError("--dry-run is for a new run; leave --resume-from out")
        if self.dry_run:
            return DRY_RUN
        return self.resume_from or ("auto" if self.resume is None else self.resume)

    @property
    def settings(self) -> list[str]:
        """All changes of settings, that of `precision` first. Raises ValueError for an unknown precision, or when a
        setting gives one, too."""
        if self.precision is None:
            return list(self.set)
        check_precision(self.precision)
        if any(each.partition("=")[0].strip() == _PRECISION for each in self.set):
            raise ValueError(f"--precision and --set {_PRECISION} both set the precision; give one of them")
        return [f"{_PRECISION}={PRECISION_NAMES[self.precision]}", *self.set]


@dataclass(frozen=True, kw_only=True)
class EncoderRequest:
    """Photos and region encoder of a run end to end, see `choose_encoder`; None for the defaults."""

    photos: Annotated[str | None, option(
        "Folder of the photos.", "DIR", END_TO_END, default="where the store says",
    )] = None  # fmt: skip
    detector: Annotated[str | None, option(
        _DETECTORS, "NAME", END_TO_END, default="that of the start or recipe, else vg-r101-c4-600; with --toy: toy",
    )] = None  # fmt: skip
    weights: Annotated[str | None, option(_WEIGHTS, "FILE", END_TO_END, default="those of --detector")] = None
    conventions: Annotated[str | None, option(
        _CONVENTIONS, "NAME", END_TO_END, default="those of --detector, else vlbert-e2e", advanced=True,
    )] = None  # fmt: skip


def _numbers(name: str) -> Callable[[str | None], tuple[int, ...] | None]:
    def read(text: str | None) -> tuple[int, ...] | None:
        try:
            return None if text is None else tuple(int(part) for part in text.split(",") if part.strip())
        except ValueError:
            raise ValueError(f"{name} {text!r}: expected whole numbers with commas between, such as 1,2") from None

    return read


@dataclass(frozen=True, kw_only=True)
class LabelledPhotosOptions:
    """Labelled photos, see `roibeam.pipelines.data.labelled_photos.open_labelled_photos`."""

    labels: Annotated[str, option(
        "Photos with labelled objects: COCO's instances .json, or a split .txt of Visual Genome.", "FILE", INPUT,
    )]  # fmt: skip
    photos: Annotated[str | None, option(
        "Folder of the photos.", "DIR", INPUT, default="the folder of the labels",
    )] = None  # fmt: skip
    vocab: Annotated[str | None, option(
        "Folder with the class names, for labels of Visual Genome.", "DIR", INPUT, default="the folder of the labels",
    )] = None  # fmt: skip


@renamed(images="photos", val_images="val_photos", settings="set")
@dataclass(frozen=True, kw_only=True)
class DetectorTrainRequest(TrainingOptions, LabelledPhotosOptions):
    """Training of a detector, which `training.detector.train_request.train_requested_detector` makes."""

    val_labels: Annotated[str | None, option(
        "Other labelled photos, on which the detector is evaluated during the training.", "FILE", INPUT, default="none",
    )] = None  # fmt: skip
    val_photos: Annotated[str | None, option(
        "Folder of the photos of --val-labels.", "DIR", INPUT, default="the folder of --val-labels",
    )] = None  # fmt: skip
    detector: Annotated[str | None, option(
        "Network by name: vg-r101-c4, vinvl-x152-c4, milvlg-d2-r50, r2c-r50, small, others; toy for that of the toy "
        "detector.", "NAME", DETECTOR, default="those of --weights, or vg-r101-c4",
    )] = None  # fmt: skip
    conventions: Annotated[str | None, option(
        _CONVENTIONS, "NAME", DETECTOR, default="those of --weights or --detector, else hf", advanced=True,
    )] = None  # fmt: skip
    weights: Annotated[str | None, option(
        f"{_WEIGHTS} A file must have the classes of --labels; a detector's folder may have others.", "FILE", DETECTOR,
        default="new weights",
    )] = None  # fmt: skip
    resnet: Annotated[str | None, option(
        "Start from the ResNet of this file only, such as ImageNet's or another detector's.", "FILE", DETECTOR,
    )] = None  # fmt: skip
    frozen_stages: Annotated[tuple[int, ...] | None, option(
        "Stages of the ResNet that are not trained.", "N,N", TRAINING, default="1,2 with a file, none without",
        advanced=True, convert=_numbers("--frozen-stages"),
    )] = None  # fmt: skip
    steps: Annotated[int, option("Number of optimizer steps.", "N", TRAINING, min=1)] = 90_000
    batch_size: Annotated[int, option("Photos that each process computes at once.", "N", TRAINING, min=1)] = 2
    learning_rate: Annotated[float, option(
        "Highest learning rate, of SGD. Not scaled by batch size or number of processes.", "RATE", TRAINING,
    )] = 0.0025  # fmt: skip
    warmup_steps: Annotated[int | None, option(
        "Steps until the learning rate is at its highest.", "N", TRAINING, min=0,
        default="1000, at most a third of --steps",
    )] = None  # fmt: skip
    decay_steps: Annotated[tuple[int, ...] | None, option(
        "Steps after which the learning rate falls to a tenth.", "N,N", TRAINING, default="2/3 and 8/9 of --steps",
        advanced=True, convert=_numbers("--decay-steps"),
    )] = None  # fmt: skip
    set: Annotated[Sequence[str], option(
        "Change one setting, as section.field=value; may be given several times. Sections: train, photos, sampling, "
        "losses, detector, conventions.", "FIELD=VALUE", DETECTOR,
    )] = ()  # fmt: skip
    precision: Annotated[str | None, option(
        "Number type that the network computes in: float32, bf16 or fp16.", "TYPE", SPEED, default="float32",
    )] = None  # fmt: skip
