"""Settings of end-to-end training: a model's region encoder, how it is trained, weights of the detector's losses.

Also reads a joint checkpoint's settings of its encoder. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, CONVENTIONS_OF_SIZES, Conventions
from roibeam.extraction.weights.detector_choice import ChosenDetector, choose_detector, dataclass_of
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.overrides import preset
from roibeam.pipelines.training.parameter_groups import ENCODER_RULES
from roibeam.pipelines.training.run_folder.folder import note_best_detector
from roibeam.pipelines.training.train_config import TASK_GROUPS

if TYPE_CHECKING:
    from roibeam.extraction.region_encoder import RegionEncoder
    from roibeam.pipelines.training.requests import EncoderRequest

DEFAULT_ENCODER = "vg-r101-c4-600"  # VL-BERT's sizes
TOY_ENCODER = "toy"  # of a recipe's toy, by default
JOINT_FORMAT = 1
_MAX_CONFIG_BYTES = 2**20
_SECTIONS = ("end_to_end", "model", "region_encoder")


@dataclass(frozen=True)
class EncoderOptions:
    """Training settings of the region encoder.

    Attributes:
        frozen_stages: without gradients: 1 stem, 2 res2, 3 res3, 4 res4, 5 res5. VL-BERT's release freezes 1 and 2.
        recompute: computes the encoder's blocks again in the backward pass instead of keeping them: the same numbers
            for less memory and more time.
        mask_channels: number of channels of a region's map that hold outlines of objects (VCR), as R2C with 32; 0
            weighs its cells by them, as VL-BERT's release does.
        region_chunk: regions that go through res5 at once; None means all of the batch. Bounds memory, changes the
            last digits.
        learning_rate_scale: the encoder's rate, relative to the model's. The release has one rate for both; a small
            new model needs a larger one than a trained detector can bear.
    """

    frozen_stages: tuple[int, ...] = (1, 2)
    recompute: bool = False
    region_chunk: int | None = None
    mask_channels: int = 0
    learning_rate_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate_scale <= 1:
            raise ValueError(
                f"EncoderOptions: learning_rate_scale must be above 0 and at most 1, got {self.learning_rate_scale}; "
                "frozen_stages keeps stages as they are"
            )

    def check_rates(self, parameter_groups: str) -> None:
        """Raises ValueError if a release's rule, `TrainConfig.parameter_groups`, knows no region encoder, or gives
        every parameter its rate."""
        if parameter_groups not in (TASK_GROUPS, *ENCODER_RULES):
            raise ValueError(
                f"--end-to-end: the release's rule {parameter_groups!r} of train.parameter_groups knows no parameters "
                f"of a region encoder; add --set train.parameter_groups={TASK_GROUPS}"
            )
        if self.learning_rate_scale != 1 and parameter_groups != TASK_GROUPS:
            raise ValueError(
                f"--set encoder.learning_rate_scale={self.learning_rate_scale}: the rule {parameter_groups!r} of "
                "train.parameter_groups gives all parameters their rates; add --set "
                f"train.parameter_groups={TASK_GROUPS}"
            )

    def of_network(self) -> dict[str, Any]:
        """Arguments of `RegionEncoder`: all but the learning rate."""
        return {name: value for name, value in asdict(self).items() if name != "learning_rate_scale"}

    def described(self) -> dict[str, Any]:
        """Settings that must match on resume, except those in the model's own config."""
        scale = {} if self.learning_rate_scale == 1 else {"encoder_learning_rate_scale": self.learning_rate_scale}
        return {"region_chunk": self.region_chunk, **scale}


@dataclass(frozen=True)
class JointSettings:
    """Content of a joint checkpoint's config.json: all of it, the masking of the run, and the encoder's parts."""

    content: Mapping[str, Any]
    choices: EndToEndChoices
    config: DetectorConfig
    conventions: Conventions
    frozen_stages: tuple[int, ...]
    mask_channels: int = 0


def read_joint_settings(path: Path) -> JointSettings:
    hint = "a joint checkpoint's config.json is written by save_joint"
    found = read_json_object(path, max_bytes=_MAX_CONFIG_BYTES, hint=hint)
    if "end_to_end" not in found and str(found.get("model_type", "")).startswith("roibeam-"):
        raise ValueError(f"{path}: of a model on stored features, which roibeam.load_model reads")
    if not all(isinstance(found.get(section), dict) for section in _SECTIONS):
        raise ValueError(f"{path}: no joint checkpoint's config.json, which has {', '.join(_SECTIONS)}")
    if found.get("format") != JOINT_FORMAT:
        raise ValueError(
            f'{path}: "format" is {found.get("format")!r}, this roibeam reads {JOINT_FORMAT}; is it of a newer one?'
        )
    part = found["region_encoder"]
    stages = part.get("frozen_stages")
    if not isinstance(stages, list) or not all(isinstance(stage, int) for stage in stages):
        raise ValueError(f"{path}: region_encoder.frozen_stages is {stages!r}; it must be a list of stage numbers")
    channels = part.get("mask_channels", 0)
    if not isinstance(channels, int) or isinstance(channels, bool) or channels < 0:
        raise ValueError(f"{path}: region_encoder.mask_channels is {channels!r}; it must be a whole number")
    return JointSettings(
        found,
        dataclass_of(found, "end_to_end", EndToEndChoices, path),
        dataclass_of(part, "detector", DetectorConfig, path),
        dataclass_of(part, "conventions", Conventions, path),
        tuple(stages),
        channels,
    )


def choose_encoder(detector: str, weights: str | None, conventions: str | None) -> ChosenDetector:
    """The detector of the encoder, by `--detector`, `--weights` and `--conventions` together.

    A preset of sizes computes as VL-BERT's released encoder does (R2C's as R2C), unless conventions are named; a
    detector's folder as the detector.
    """
    note_best_detector(str(detector))
    chosen = choose_detector(detector, weights=weights)
    if chosen.config.grid:
        raise ValueError(
            f"--detector {detector}: an encoder pools each box by itself, which gives other features than those of a "
            f"grid's cells; train on the store of `roibeam extract`, or choose other sizes"
        )
    has_own = chosen.is_folder or detector in CONVENTIONS_OF_SIZES
    own = chosen.conventions if has_own else CONVENTIONS["vlbert-e2e"]
    named = own if conventions is None else preset("conventions", conventions, CONVENTIONS)
    return replace(chosen, conventions=named)


def chosen_encoder(request: EncoderRequest) -> ChosenDetector:
    """The detector whose ResNet is the encoder of a new run. Raises ValueError as `choose_encoder`."""
    return choose_encoder(request.detector or DEFAULT_ENCODER, request.weights, request.conventions)


def encoder_at_start(
    request: EncoderRequest, own: JointSettings | RegionEncoder | None, start: object
) -> tuple[DetectorConfig, EncoderOptions]:
    """Sizes and training settings of a run's encoder before `--set`.

    Args:
        own: the encoder of the run that this one starts from, `start`; None for a new one.
    """
    if own is None:
        return chosen_encoder(request).config, EncoderOptions()
    for name in ("detector", "weights", "conventions"):
        if getattr(request, name) is not None:
            raise ValueError(f"--{name}: {start} brings its region encoder; leave it out, or start from a model alone")
    return own.config, EncoderOptions(frozen_stages=own.frozen_stages, mask_channels=own.mask_channels)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the detector's losses beside those of the model, on top of its `LossRules`."""

    objectness: float = 1.0
    proposal_boxes: float = 1.0
    classes: float = 1.0
    region_boxes: float = 1.0
    attributes: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < float("inf"):
                raise ValueError(f"the weight {field.name} is {getattr(self, field.name)!r}; it must not be negative")
