"""What a fine-tuning run through the region encoder is asked to have beside, and its sections of settings. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from roibeam.extraction.weights.file_container import check_weight_file
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.common.files.named_files import FOLDER, NamedFiles
from roibeam.pipelines.data.record_photos import tells_photos
from roibeam.pipelines.training.model_files.encoder_settings import (
    DEFAULT_ENCODER,
    EncoderOptions,
    JointSettings,
    choose_encoder,
    read_joint_settings,
)
from roibeam.pipelines.training.model_files.model_folder import CONFIG, model_folder

SECTIONS = ("detector", "encoder", "photos", "end_to_end")


@dataclass(frozen=True)
class EncoderRequest:
    """Names are those of the options.

    Attributes:
        photos: their folder; None where the store says that they lie.
        detector, weights, conventions: of an encoder that does not come with the model, see `choose_encoder`.
    """

    photos: str | None = None
    detector: str | None = None
    weights: str | None = None
    conventions: str | None = None

    def refuse(self) -> None:
        """Raises ValueError where something is given, for a run on stored features."""
        given = [field.name for field in fields(self) if getattr(self, field.name)]
        if given:
            raise ValueError(f"--{given[0]} is for --end-to-end; stored features need no photos and no encoder")

    def need(self, named: NamedFiles) -> None:
        """Looks for the files."""
        named.need("--photos", self.photos, FOLDER)
        named.need("--weights", self.weights)
        named.look(lambda: check_weight_file(self.weights))


@dataclass(frozen=True)
class TaskPhotos:
    """How photos of a task become batches.

    Attributes:
        flip: whether every other photo of training, by chance, is mirrored left to right, its boxes with it. What then
            becomes of the words the task says; photos of a task that says nothing of it are not mirrored.
        fixed_size: whether every photo is padded to the encoder's short edge x long edge (VL-BERT on VCR), instead of
            to the largest of its batch.
        outlines: whether regions count inside the outlines of their objects alone, where a task has some (VCR).
        aspect_buckets: whether photos of nearly the same shape come together, so that batches need little padding
            (VL-BERT on RefCOCO+).
        read_ahead: threads that read and resize photos.

    Raises:
        ValueError: naming the field.
    """

    flip: bool = True
    fixed_size: bool = False
    outlines: bool = True
    aspect_buckets: bool = False
    read_ahead: int = 2

    def __post_init__(self) -> None:
        if self.read_ahead < 1:
            raise ValueError(f"TaskPhotos: read_ahead must be at least 1, got {self.read_ahead}")

    def described(self) -> dict[str, Any]:
        """What a resumed run must have alike."""
        return {name: value for name, value in asdict(self).items() if name != "read_ahead"}


def encoder_sections(asked: EncoderRequest, start: str, whole_image: str) -> dict[str, Any]:
    """The sections of `--set`, by `SECTIONS`, with their defaults: those of the run that this one starts from, if any.

    Args:
        start: that the model comes from; of anything but a run end to end only the model.
        whole_image: see `EndToEndChoices`.
    Raises:
        ValueError: when options are missing or contradict each other.
    """
    own = joint_start(start)
    if own is None:
        sizes = choose_encoder(asked.detector or DEFAULT_ENCODER, asked.weights, asked.conventions).config
        options, choices = EncoderOptions(), EndToEndChoices(whole_image=whole_image)
    else:
        named = [name for name in ("detector", "weights", "conventions") if getattr(asked, name) is not None]
        if named:
            raise ValueError(
                f"--{named[0]}: {start} brings its region encoder; leave it out, or start from a model alone"
            )
        sizes, choices = own.config, own.choices
        options = EncoderOptions(frozen_stages=own.frozen_stages, mask_channels=own.mask_channels)
    return dict(zip(SECTIONS, (sizes, options, TaskPhotos(), choices), strict=True))


def asked_encoder(asked: EncoderRequest, start: str, published: str) -> EncoderRequest:
    """What is asked for, or of the published run where neither the user nor the start says which encoder it is.

    Args:
        start: as of `encoder_sections`.
        published: preset of its detector; "" for none of its own.
    """
    if asked.detector is not None or not published or joint_start(start) is not None:
        return asked
    return replace(asked, detector=published)


def joint_start(start: str) -> JointSettings | None:
    """What a run end to end says of its encoder; None for anything else that a run may start from.

    Raises:
        ValueError: for a folder without a model, or a config.json that cannot be read.
    """
    path = Path(start).expanduser()
    if not path.is_dir():
        return None
    config = model_folder(path)[0] / CONFIG
    return read_joint_settings(config) if "end_to_end" in read_json_object(config) else None


def check_tells_photos(store: FeatureStore, photos: str | None) -> None:
    """Raises ValueError where neither the user nor the store says where the photos lie."""
    if photos is None and not tells_photos(store):
        raise ValueError(
            f"--end-to-end reads photos, and {store.path} does not say where its photos lie; name their folder with "
            f"--photos"
        )
