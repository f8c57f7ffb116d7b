"""Request of a detector's training: labels, sizes and a start by their names. Files, names and settings are checked
before torch is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, CONVENTIONS_OF_SIZES, Conventions
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.extraction.weights.detector_choice import DetectorFolder, is_detector_folder, read_detector_folder
from roibeam.extraction.weights.sources import check_weight_file
from roibeam.messages import plural
from roibeam.pipelines.common.compute import check_device, is_main_process, sleep_beside_others
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.common.console.overrides import apply_overrides, preset, refuse_two_values
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.labelled_photos import LabelledPhotos, check_same_names, look_once, open_labelled_photos
from roibeam.pipelines.training.detector.settings import BEST_BY, DetectorPhotoRules, DetectorSettings, Start
from roibeam.pipelines.training.requests import DetectorTrainRequest
from roibeam.pipelines.training.run_folder.folder import check_run_folder, note_best_detector
from roibeam.pipelines.training.train_config import OPTIONS, TrainConfig, with_settings

if TYPE_CHECKING:
    from roibeam.pipelines.training.hooks import TrainResult

_OPTIONS = {**OPTIONS, "train.decay_steps": "decay_steps", "photos.batch_size": "batch_size"}
_DEFAULT_SIZES, _DEFAULT_CONVENTIONS = "vg-r101-c4", "hf"
_DEFAULT_WARMUP = 1000  # steps, of runs that have three times as many


@dataclass(frozen=True)
class TrainedDetector:
    """Attributes:
    result: of the loop.
    folder: folder of the newest detector, see `read_detector_folder`.
    photos: training photos.
    """

    result: TrainResult
    folder: Path
    photos: LabelledPhotos


def train_requested_detector(request: DetectorTrainRequest, run_dir: Path) -> TrainedDetector:
    _check(request, run_dir)
    with waiting("reading the labels"):
        photos = open_labelled_photos(request.labels, image_root=request.photos, vocab=request.vocab)
    num_classes, num_attributes = len(photos.class_names), len(photos.attribute_names)
    sizes = replace(_sizes(request), num_classes=num_classes, num_attributes=num_attributes)
    settings = _settings(request, sizes)
    exif = settings.conventions.exif_orientation
    photos = look_once(photos, exif, is_trained_on=True)
    judged = None if request.val_labels is None else _judged(request, photos, exif)
    # Import torch here, after names are checked.
    sleep_beside_others()
    with waiting("loading torch"):
        import torch

        from roibeam.pipelines.training.detector.task import train_detector

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    result = train_detector(photos, run_dir, settings, judged=judged, resume=request.resume_choice)
    return TrainedDetector(result, result.checkpoint / "model", photos)


def _judged(request: DetectorTrainRequest, photos: LabelledPhotos, exif_orientation: str) -> LabelledPhotos:
    assert request.val_labels is not None
    judged = open_labelled_photos(request.val_labels, image_root=request.val_photos, vocab=request.vocab).once()
    check_same_names(judged, photos.class_names, photos.attribute_names, f"of {request.labels}")
    trained = {os.path.realpath(os.path.join(photos.root, image.file_name)) for image in photos.images}
    both = [
        image.file_name
        for image in judged.images
        if os.path.realpath(os.path.join(judged.root, image.file_name)) in trained
    ]
    if both:
        raise ValueError(
            f"--val-labels {request.val_labels!r}: --labels too has {plural(len(both), 'photo')} of it, such as "
            f"{both[0]!r}; evaluate on photos that are not trained on"
        )
    return look_once(judged, exif_orientation, is_trained_on=False, option="--val-photos")


def _check(request: DetectorTrainRequest, run_dir: Path) -> None:
    named = NamedFiles()
    named.need("--labels", request.labels, FILE)
    named.need("--photos", request.photos, FOLDER)
    named.need("--vocab", request.vocab)
    named.need("--val-labels", request.val_labels, FILE)
    named.need("--val-photos", request.val_photos, FOLDER)
    if request.val_photos is not None and request.val_labels is None:
        named.refuse("--val-photos is the folder of the photos of --val-labels; give that too")
    for option, weights in (("--weights", request.weights), ("--resnet", request.resnet)):
        if option == "--weights" and weights is not None and is_detector_folder(weights):
            named.look(partial(read_detector_folder, weights))
        elif named.need(option, weights, FILE):
            named.look(partial(check_weight_file, weights))
    if named.need_output_folder(run_dir) and is_main_process():  # other processes may check after the run has started
        named.look(lambda: check_run_folder(run_dir, resume=request.resume_choice))
    sizes = named.look(lambda: _sizes(request))
    conventions = named.look(lambda: _conventions(request))
    if sizes is not None and conventions is not None:
        named.look(lambda: check_device(_settings(request, sizes).train.device))
    named.check()


def _own_folder(request: DetectorTrainRequest) -> DetectorFolder | None:
    if request.weights is None or not is_detector_folder(request.weights):
        return None
    note_best_detector(str(request.weights))
    return read_detector_folder(request.weights)


def _sizes(request: DetectorTrainRequest) -> DetectorConfig:
    folder = _own_folder(request)
    if folder is not None and request.detector is not None:
        raise ValueError(
            f"--detector {request.detector!r}: --weights {request.weights} is a detector's folder and brings its "
            f"sizes; leave --detector out"
        )
    if folder is not None:
        return folder.config
    if request.detector is not None and request.detector not in CONFIGS and is_detector_folder(request.detector):
        raise ValueError(
            f"--detector {request.detector!r} is a folder, here it names sizes: {', '.join(CONFIGS)}; to start from "
            f"the detector in that folder give --weights {request.detector}"
        )
    sizes = preset("detector", request.detector or _DEFAULT_SIZES, CONFIGS)
    if sizes.grid:
        raise ValueError(
            f"--detector {request.detector!r} gives the cells of a grid, with no proposals to train; choose one "
            f"of {', '.join(name for name, each in CONFIGS.items() if not each.grid)}"
        )
    return sizes


def _conventions(request: DetectorTrainRequest) -> Conventions:
    folder = _own_folder(request)
    if folder is not None and request.conventions is None:
        return folder.conventions
    own = CONVENTIONS_OF_SIZES.get(str(request.detector), _DEFAULT_CONVENTIONS)
    return preset("conventions", request.conventions or own, CONVENTIONS)


def _settings(request: DetectorTrainRequest, sizes: DetectorConfig) -> DetectorSettings:
    sections: dict[str, Any] = {
        "photos": DetectorPhotoRules(batch_size=request.batch_size),
        "sampling": SamplingRules(),
        "losses": LossRules(),
        "detector": sizes,
        "conventions": _conventions(request),
    }
    of_train = [each for each in request.settings if each.startswith("train.")]
    others = [each for each in request.settings if each not in of_train]
    sections = apply_overrides(sections, others, elsewhere=["train"])
    refuse_two_values(request, _OPTIONS, request.settings)
    train = with_settings(_train_config(request), of_train)
    if request.decay_steps is None and train.schedule == "steps" and not train.decay_steps:
        falls = (request.steps * 2 // 3, request.steps * 8 // 9)
        if train.warmup_steps > falls[0]:
            raise ValueError(
                f"--warmup-steps {train.warmup_steps}: of {request.steps:,} steps the learning rate first falls after "
                f"{falls[0]:,}; take at most so many, or set its falls (--decay-steps)"
            )
        train = replace(train, decay_steps=falls)
    from_file = request.weights is not None or request.resnet is not None
    if not from_file and not sections["conventions"].norm_eps:
        raise ValueError(
            "norm_eps is 0 in these conventions, and from scratch norms are trained, which takes more: give --weights "
            "or --resnet, or --set conventions.norm_eps=1e-5"
        )
    frozen = request.frozen_stages if request.frozen_stages is not None else (1, 2) if from_file else ()
    if request.val_labels is not None:
        every = train.evaluate_every or max(1, train.steps // 10)
        train = replace(train, evaluate_every=every, best_by=train.best_by or BEST_BY)
    return DetectorSettings(
        sections["detector"], sections["conventions"], train, Start(request.weights, request.resnet, frozen),
        sections["photos"], sections["sampling"], sections["losses"],
    )  # fmt: skip


def _train_config(request: DetectorTrainRequest) -> TrainConfig:
    steps, warmup = request.steps, request.warmup_steps
    return TrainConfig(
        steps=steps, learning_rate=request.learning_rate,
        warmup_steps=min(_DEFAULT_WARMUP, steps // 3) if warmup is None else warmup,
        schedule="steps", decay_steps=request.decay_steps or (), optimizer="sgd", device=request.device,
        seed=request.seed, checkpoint_every=max(1, min(1000, steps // 10)),
    )  # fmt: skip
