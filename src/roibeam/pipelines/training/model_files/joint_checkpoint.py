"""A model and its region encoder as one folder: the result of a joint training, and the start of the next one.

config.json          settings of the run, the model's config, the encoder's sizes and conventions; of a run on labelled
                     photos too, the names of the detector's classes and attributes
model.safetensors    weights of both, under `model.` and `region_encoder.`; and `detection.`, the detector's heads

VL-BERT's release (jackroos/VL-BERT) has such models as one file, which the functions with `official` read and write.
`JointDetector` is the module: rows and photos -> region encoder -> model -> the system's losses; labelled photos -> the
same backbone -> RPN, res5, heads -> the detector's losses, weighted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from roibeam.extraction.network.config import written_settings
from roibeam.extraction.network.state import check_state
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.training.batch import DetectionBatch
from roibeam.extraction.training.batch_losses import LOSSES, DetectorHeads, DetectorTraining
from roibeam.extraction.training.rules import LossRules, SamplingRules
from roibeam.extraction.weights.detector_choice import detector_names
from roibeam.extraction.weights.families import COUNTER, DATA_PARALLEL_PREFIX, VLBERT_PREFIX, family_names, name_weights
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_weights
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.model.vlbert.checkpoint import (
    LAST_STAGE,
    LAST_STAGE_AGAIN,
    split_official,
    state_from_official,
    state_to_official,
)
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.checkpoint import put_in_place
from roibeam.pipelines.training.detector.task import summed
from roibeam.pipelines.training.model_files.encoder_settings import JOINT_FORMAT, LossWeights, read_joint_settings
from roibeam.pipelines.training.model_files.model_checkpoint import (
    HEAD_LEFT_OUT,
    ModelCheckpoint,
    build_model,
    check_finite,
    check_parameters,
    class_of,
    config_class_of,
    model_in,
    naming_model,
    read_model,
    without_task_head,
)
from roibeam.pipelines.training.model_files.model_folder import TASK_MODEL, check_model_sums, model_folder
from roibeam.pipelines.training.run_folder.files import sync_to_disk, write_json

DETECTION_PREFIX = "detection_"  # prefix of the detector's losses and metrics among those of the model


class JointDetector(EndToEndModel):
    """An `EndToEndModel` that also learns from labelled photos, through the same backbone and last stage. Frozen stages
    are frozen for the detector too. Names of classes and attributes are in id order."""

    def __init__(
        self,
        model: Any,
        region_encoder: RegionEncoder,
        choices: EndToEndChoices,
        heads: DetectorHeads,
        *,
        class_names: Sequence[str],
        attribute_names: Sequence[str],
        sampling: SamplingRules | None = None,
        loss_rules: LossRules | None = None,
        weights: LossWeights | None = None,
    ) -> None:
        super().__init__(model, region_encoder, choices)
        self.detection = heads
        self.class_names, self.attribute_names = tuple(class_names), tuple(attribute_names)
        self.weights = weights or LossWeights()
        training = DetectorTraining(
            heads.detector(region_encoder),
            sampling=sampling,
            loss_rules=loss_rules,
            frozen_stages=region_encoder.frozen_stages,
        )
        # In a tuple, so that it is no part of the state: all that it trains is a part of this module already.
        self._training = (training,)

    def forward(
        self, batch: VLBatch, images: ImageBatch, *arguments: Any, labelled: DetectionBatch | None = None
    ) -> Any:
        """See `EndToEndModel`; `labelled` adds the detector's losses and metrics on these photos. In one call with the
        others: data-parallel training looks for gradients once."""
        output = super().forward(batch, images, *arguments)
        if labelled is None:
            return output
        found = self.detect(labelled)
        return PreTrainingOutput({**output.losses, **found.losses}, {**output.metrics, **found.metrics})

    def detect(self, labelled: DetectionBatch) -> PreTrainingOutput:
        """The detector's losses on labelled photos, times their weights, and its metrics."""
        (training,) = self._training
        found = summed(training(labelled))
        losses = {
            DETECTION_PREFIX + name: SumCount(getattr(self.weights, name) * term.total, term.count)
            for name, term in found.losses.items()
        }
        return PreTrainingOutput(losses, {DETECTION_PREFIX + name: term for name, term in found.metrics.items()})

    @staticmethod
    def loss_counts(labelled: DetectionBatch) -> dict[str, int]:
        """Number of elements that each of the detector's losses is averaged over."""
        return dict.fromkeys((DETECTION_PREFIX + name for name in LOSSES), len(labelled))


CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_HEADS, _OWN = "detection.", "model."


def describe_joint(joint: EndToEndModel, model: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Content of `config.json`; ValueError if the encoder has other parts than its config makes, so that it could not
    be read back. `model` describes the model; None for its configuration and class."""
    encoder = region_encoder_of(joint)
    if model is None:
        own = cast(PreTrainedModel, joint.model)
        model = {**own.config.to_diff_dict(), "architectures": [type(own).__name__]}
    with torch.device("meta"):
        described = RegionEncoder(encoder.config, encoder.conventions, mask_channels=encoder.mask_channels)
    try:
        check_parameters(encoder.state_dict(), described.state_dict())
    except ValueError as error:
        raise ValueError(f"the region encoder has other parts than its config makes: {error}") from None
    detection = {}
    if isinstance(joint, JointDetector):
        joint.detection.check_anchors()
        names = {"class_names": list(joint.class_names), "attribute_names": list(joint.attribute_names)}
        detection = {"detection": names}
    return {
        "format": JOINT_FORMAT,
        "end_to_end": asdict(joint.choices),
        "model": dict(model),
        "region_encoder": {
            "detector": written_settings(encoder.config),
            "conventions": written_settings(encoder.conventions),
            "frozen_stages": list(encoder.frozen_stages),
            **({"mask_channels": encoder.mask_channels} if encoder.mask_channels else {}),
        },
        **detection,
    }


def region_encoder_of(joint: EndToEndModel) -> RegionEncoder:
    """The encoder with its own type: `EndToEndModel` knows it as a protocol."""
    assert isinstance(joint.region_encoder, RegionEncoder)
    return joint.region_encoder


def save_joint(joint: EndToEndModel, folder: str | Path) -> Path:
    """Writes aside, makes durable, renames: a folder of this name is complete. An existing one is replaced."""
    final = Path(folder)
    described = describe_joint(joint)
    aside = final.with_name(f".writing-{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_model(joint, str(aside / WEIGHTS_NAME), metadata={"format": "pt"})
    write_json(aside / CONFIG_NAME, described)
    put_in_place(aside, final)
    return final


def joint_folder(spec: str) -> tuple[Path, Path | None] | None:
    """The joint checkpoint that a folder, or a run by its newest checkpoint, holds, and its tokenizer's folder if any;
    None when `spec` is anything else."""
    path = Path(spec).expanduser()
    if not path.is_dir():
        return None
    folder, tokenizer = model_folder(path)
    return (folder, tokenizer) if "end_to_end" in read_json_object(folder / CONFIG_NAME) else None


@dataclass(frozen=True, eq=False, kw_only=True)
class JointCheckpoint(ModelCheckpoint):
    """A model that was read with its region encoder.

    Attributes:
        joint: both; `model` is its model.
    """

    joint: EndToEndModel


def load_model_or_joint(spec: str, *, options: Path | None = None) -> ModelCheckpoint:
    """The model that `spec` names, as of `load_model`: on stored features, or a `JointCheckpoint` of a run end to end
    or a folder of `save_joint`."""
    found = joint_folder(spec)
    if found is None:
        return read_model(spec, options=options)
    if options is not None:
        raise ValueError(f"{spec} has a configuration of its own; --config is for official files")
    joint = load_joint(found[0])
    is_tuned = read_json_object(found[0] / CONFIG_NAME)["model"].get("model_type") == TASK_MODEL
    changes = HEAD_LEFT_OUT if is_tuned else ()
    return JointCheckpoint(cast(PreTrainedModel, joint.model), *found, changes, joint=joint)


def load_joint(
    folder: str | Path,
    *,
    make_model: Callable[[Mapping[str, Any]], nn.Module] | None = None,
    left_out: str | None = None,
) -> EndToEndModel:
    """The model and its encoder, in evaluation mode, with every weight bit for bit as it was saved; a `JointDetector`
    with default losses if it was trained on labelled photos too. A fine-tuned one comes without its head.

    Args:
        folder: of `save_joint`, or a run end to end (its newest checkpoint, of the last stage), or one of its
            checkpoints.
        make_model: the config's description of the model -> the model with any weights; None for `MODEL_CLASSES`.
        left_out: prefix of the names of weights that this model does not have; None for none.
    Raises:
        ValueError: one line that names the file: if it is missing, damaged or of another kind, or if config and
            weights do not fit, such as features of two widths, or a weight that is missing, too much, misshapen, NaN or
            infinite.
    """
    folder = Path(folder).expanduser()
    if folder.is_dir() and not (folder / WEIGHTS_NAME).is_file():
        folder, _ = model_folder(folder)
    path, weights = folder / CONFIG_NAME, folder / WEIGHTS_NAME
    for needed in (path, weights):
        if not needed.is_file():
            raise ValueError(
                f"{folder}: {needed.name} is missing; a joint checkpoint is {CONFIG_NAME} and {WEIGHTS_NAME}"
            )
    check_model_sums(folder)
    found = read_joint_settings(path)
    config, conventions, content = found.config, found.conventions, found.content
    with naming_model(folder):
        names = detector_names(content["detection"], config, path) if "detection" in content else None
        is_tuned = make_model is None and content["model"].get("model_type") == TASK_MODEL
        described = model_in(content["model"], folder) if is_tuned else content["model"]
        maker = make_model or _maker_of(described, path)

        def make() -> EndToEndModel:
            encoder = RegionEncoder(
                config, conventions, frozen_stages=found.frozen_stages, mask_channels=found.mask_channels
            )
            return EndToEndModel(maker(described), encoder, found.choices)

        tensors = _tensors(weights)
        if is_tuned:
            inner = {_OWN + name: each for name, each in without_task_head(without_task_head(tensors)).items()}
            tensors = inner | {name: each for name, each in tensors.items() if not name.startswith(_OWN)}
        if left_out is not None:
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"model.{left_out}")}
        of_heads = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_HEADS)} if names else {}
        for name, tensor in (tensors | of_heads).items():
            check_finite(name, tensor)
        joint = build_model(make, tensors)
        if names is None:
            return joint
        state = {name.removeprefix(_HEADS): tensor for name, tensor in of_heads.items()}
        with torch.device("meta"):
            wanted = DetectorHeads(config, conventions).state_dict()
        check_parameters(state, wanted)
        heads = DetectorHeads(config, conventions)
        heads.load_state_dict(state)
        classes, attributes = names
        return JointDetector(
            joint.model, region_encoder_of(joint), found.choices, heads, class_names=classes, attribute_names=attributes
        ).eval()


def load_official_joint(spec: str, joint: EndToEndModel) -> None:
    """Fills model and encoder, or neither, from an official checkpoint; nothing in the file is executed.

    Args:
        spec: a file, or a URL, as `fetch_weights` takes it.
        joint: a VL-BERT, for pre-training or a task, whose config fits the checkpoint (`config_from_official`), with
            its encoder.
    Raises:
        ValueError: if the file cannot be read as tensors, holds no image network, or its tensors are not exactly
            those of `joint`.
        OSError: if it cannot be fetched.
    """
    source = f"weights {spec}"
    official, network = split_official(_tensors(fetch_weights(spec)))
    if not network:
        raise ValueError(
            f"{source}: holds no image network, so it was trained on stored features; load it without a region encoder"
        )
    encoder = check_state(name_weights(network, source).tensors, region_encoder_of(joint).state_dict(), source)
    state = {f"model.{name}": tensor.float() for name, tensor in state_from_official(official).items()}
    state |= {f"region_encoder.{name}": tensor for name, tensor in encoder.items()}
    try:
        check_parameters(state, joint.state_dict())
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    joint.load_state_dict(state)


def official_joint_state(joint: EndToEndModel, kind: str = "pretrain") -> dict[str, Tensor]:
    """Every tensor by its official name, as the release saves them: the last stage twice, norms with their counters;
    `kind` as of `state_to_official`, such as "vcr-1fc"."""
    if region_encoder_of(joint).mask_channels:
        raise ValueError("VL-BERT's files have no place for encoder.mask_channels, which is R2C's; leave it at 0")
    official = state_to_official(joint.model.state_dict(), kind)
    names = family_names("vlbert-checkpoint")
    for name, tensor in region_encoder_of(joint).state_dict().items():
        name_there = VLBERT_PREFIX + names[name]
        official[name_there] = tensor
        if name_there.endswith(".running_var"):
            official[name_there.removesuffix("running_var") + COUNTER] = torch.tensor(0)
    again = {name: t for name, t in official.items() if name.startswith(LAST_STAGE)}
    return official | {LAST_STAGE_AGAIN + name.removeprefix(LAST_STAGE): tensor for name, tensor in again.items()}


def save_official_joint(joint: EndToEndModel, path: str | Path, kind: str = "pretrain") -> Path:
    """Writes `{"state_dict": {"module....": tensor}}`, which the official code and `load_official_joint` read; `kind`
    as of `official_joint_state`."""
    final = Path(path)
    official = {DATA_PARALLEL_PREFIX + name: tensor for name, tensor in official_joint_state(joint, kind).items()}
    aside = final.with_name(f".writing-{final.name}")
    torch.save({"state_dict": official}, aside)
    sync_to_disk(aside)
    aside.rename(final)
    sync_to_disk(final.parent)
    return final


def _maker_of(described: Mapping[str, Any], path: Path) -> Callable[[Mapping[str, Any]], nn.Module]:
    model_class = class_of(described, path)
    return lambda settings: model_class(config_class_of(model_class).from_dict(dict(settings)))


def _tensors(path: Path) -> dict[str, Tensor]:
    return {name: value for name, value in read_tensors(path).items() if isinstance(value, Tensor)}
