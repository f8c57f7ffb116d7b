"""Model with its weights, read from a roibeam folder, a training run, an official file or repository.

Nothing in a file is executed: weights go through `roibeam.extraction.weights.files`, configurations are JSON.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PretrainedConfig, PreTrainedModel

from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_from_hub, fetch_weights
from roibeam.features.record.region_record import BOX_NUMBERS, RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining, SingleStreamForTasks
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
)
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.model_files.model_folder import (
    CONFIG,
    MAX_CONFIG_BYTES,
    TASK_MODEL,
    check_model_sums,
    model_folder,
    settings_beside,
)
from roibeam.pipelines.training.model_files.provenance import check_feature_space, trained_with
from roibeam.pipelines.training.model_files.published_models import PublishedModel, Understood, assumed, system_of

WEIGHTS = "model.safetensors"
# The first class of a kind of configuration is the one that a config.json without `architectures` means.
MODEL_CLASSES: tuple[type[PreTrainedModel], ...] = (
    VLBertForPreTraining,
    VLBertForVqa,
    VLBertForVcr,
    VLBertForReferring,
    ViLbertForPreTraining,
    ViLbertForTasks,
    ViLbertForMultiTask,
    SingleStreamForPreTraining,
    SingleStreamForTasks,
    VisualBertForPreTraining,
    VisualBertForLabels,
    VisualBertForGrounding,
    ImageBertForPreTraining,
    InterBertForPreTraining,
    InterBertForTasks,
)
# Some are made and replaced by shared ones, and some are in no file.
_PARAMETERS_MORE = 8
AnyModule = TypeVar("AnyModule", bound=nn.Module)
AnyTensor = TypeVar("AnyTensor")
HEAD_LEFT_OUT = ("the head of the task that it was fine-tuned for is left out",)


@dataclass(frozen=True, eq=False)
class ModelCheckpoint:
    """A model as it was read.

    Attributes:
        model: in evaluation mode, float32, on the CPU.
        source: the folder or file that its weights came from.
        tokenizer: folder of the tokenizer it was trained with, if the run folder has one.
        changes: left-out parts and assumptions, for people.
        assumed: whether settings that the file lacks were taken as published, since no configuration came with it;
            `changes` names them.
    """

    model: PreTrainedModel
    source: Path
    tokenizer: Path | None = None
    changes: tuple[str, ...] = ()
    assumed: bool = False

    @property
    def feature_space(self) -> str | None:
        """Feature space of the first store that its run was trained on; None without a run's record."""
        return trained_with(self).feature_space

    def check_store(self, store: FeatureStore) -> list[str]:
        """Checks that the model was trained on features such as a store has: those of another detector fit its width,
        and give numbers without meaning.

        Returns:
            Allowed differences (boxes, dtype, mode), or that the model's training features are unknown; a line each.
        """
        if self.feature_space is None:
            return [f"{self.source} is no run's checkpoint and does not record the features that it was trained on"]
        return check_feature_space(self, store)

    def as_read(self, record: RegionRecord) -> RegionRecord:
        """A store's record as the model reads it: with six numbers of its box behind each feature
        (`RegionRecord.with_box_numbers`) if the model is six numbers wider and was trained so, else unchanged.

        A file without a run does not record it: a VisualBERT has them then.
        """
        config: Any = self.model.config
        is_wider = config.region_feature_size == record.features.shape[1] + BOX_NUMBERS
        return record.with_box_numbers() if is_wider and self._has_box_numbers else record

    @cached_property
    def _has_box_numbers(self) -> bool:
        of_run = trained_with(self).box_numbers
        return isinstance(self.model.config, VisualBertConfig) if of_run is None else of_run

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.model.parameters())
        suffix = f", {len(self.changes)} changes" if self.changes else ""
        return (
            f"ModelCheckpoint({type(self.model).__name__} of {count:,} parameters, from {str(self.source)!r}{suffix})"
        )


def load_model(spec: str, *, options: Path | None = None) -> ModelCheckpoint:
    """The model that `spec` names.

    Args:
        spec: one of
            a folder that `save_pretrained` or `roibeam convert` wrote;
            a run folder of `roibeam pretrain` (its newest checkpoint, of the last stage) or one of its checkpoints;
            the same of `roibeam finetune`, whose model comes without the head of its task;
            an official checkpoint of VL-BERT, ViLBERT, VisualBERT or InterBERT: a file, a folder of transformers with
            config.json, hf:<repo>, or a URL as for the weights of a detector.
        options: JSON configuration of an official file: that which the official codes ship, or that which `roibeam
            convert` writes. None takes the one that `roibeam convert` wrote beside the file (x.bin.json of x.bin), if
            it is there.
    Raises:
        ValueError: one line, with the file and its fault.
        OSError: if the network or a disk fails.
    Warns:
        UserWarning: if an official file came without a configuration, so that settings were taken as published.
    """
    found = read_model(spec, options=options)
    if found.assumed:
        hint = f"options=Path(...) or {settings_beside(found.source).name} beside it sets others"
        warnings.warn(f"{found.source}: {'; '.join(found.changes)}; {hint}", stacklevel=2)
    return found


def read_model(spec: str, *, options: Path | None = None) -> ModelCheckpoint:
    """See `load_model`, without a warning; the caller reports `changes`."""
    path = Path(spec).expanduser()
    if path.is_dir():
        return _from_folder(path, options)
    if spec.startswith("random:"):
        raise ValueError(f"{spec!r}: a model with new weights is made by its class, as ViLbertForPreTraining(config)")
    if spec.startswith("hf:"):
        options = options or fetch_from_hub(spec, (CONFIG,))
    weights = fetch_weights(spec)
    beside = settings_beside(weights)
    if options is not None or not beside.is_file():
        return _from_official(weights, options)
    found = _from_official(weights, beside)
    return replace(found, changes=(*found.changes, f"settings read from {beside}"))


def _from_folder(folder: Path, options: Path | None) -> ModelCheckpoint:
    folder, tokenizer = model_folder(folder)
    check_model_sums(folder)
    settings = read_json_object(folder / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    if "end_to_end" in settings:
        raise ValueError(
            f"{folder}: a model with its region encoder, which reads photos; roibeam probe, evaluate, convert and "
            f"pretrain --from-run take it, and in Python roibeam.load_joint; here only models on stored "
            f"features fit (docs/train.md)"
        )
    is_tuned = settings.get("model_type") == TASK_MODEL
    settings = model_in(settings, folder) if is_tuned else settings
    if not is_roibeam_config(settings):
        weights = next((folder / name for name in (WEIGHTS, "pytorch_model.bin") if (folder / name).is_file()), None)
        if weights is None:
            raise ValueError(f"{folder}: neither {WEIGHTS} nor pytorch_model.bin in it")
        return _from_official(weights, options or folder / CONFIG)
    if options is not None:
        raise ValueError(f"{folder} has a configuration of its own; --config is for official files")
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder}: no {WEIGHTS} in it")
    with naming_model(folder):
        model_class = class_of(settings, folder / CONFIG)
        config = config_class_of(model_class).from_dict(settings)
        tensors: Mapping[str, object] = read_tensors(folder / WEIGHTS)
        tensors = without_task_head(tensors) if is_tuned else tensors
        model = build_model(lambda: model_class(config), _as_float32(tensors))
    return ModelCheckpoint(model, folder, tokenizer, HEAD_LEFT_OUT if is_tuned else ())


def model_in(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Description of the model in the configuration of a model with the head of a task."""
    found = settings.get("model")
    if not isinstance(found, dict):
        raise ValueError(f"{folder / CONFIG}: has no model; is it damaged?")
    return found


@contextmanager
def naming_model(where: Path) -> Iterator[None]:
    """Context manager that names the files in any error of making a model from them."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(str(where)):
            raise
        raise ValueError(f"{where}: {error}") from None
    except (TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        reason = printable(str(error).partition("\n")[0], 200)
        raise ValueError(f"{where}: its configuration makes no model: {type(error).__name__}: {reason}") from error


def without_task_head(tensors: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
    """State of the model in a `TaskModel`, by the model's own names."""
    inside = "model."
    return {name.removeprefix(inside): tensor for name, tensor in tensors.items() if name.startswith(inside)}


def is_roibeam_config(settings: Mapping[str, Any]) -> bool:
    """Whether a JSON configuration is roibeam's, not of transformers or of an official code."""
    return str(settings.get("model_type", "")).startswith("roibeam-")


def class_of(settings: Mapping[str, Any], where: Path) -> type[PreTrainedModel]:
    """The class that a roibeam config.json names."""
    named = settings.get("architectures") or [None]
    fitting = [each for each in MODEL_CLASSES if config_class_of(each).model_type == settings.get("model_type")]
    if not fitting:
        known = sorted({config_class_of(each).model_type for each in MODEL_CLASSES})
        raise ValueError(f"{where}: model_type {settings.get('model_type')!r} is unknown; there are {', '.join(known)}")
    if named[0] is None:
        return fitting[0]
    for model_class in fitting:
        if model_class.__name__ == named[0]:
            return model_class
    raise ValueError(
        f"{where}: architecture {named[0]!r} is unknown; there are {', '.join(each.__name__ for each in fitting)}"
    )


def config_class_of(model_class: type[PreTrainedModel]) -> type[PretrainedConfig]:
    assert model_class.config_class is not None
    return model_class.config_class


def _from_official(weights: Path, options: Path | None) -> ModelCheckpoint:
    settings = None if options is None else read_json_object(options, max_bytes=MAX_CONFIG_BYTES)
    with naming_model(weights):
        named = _as_float32(read_tensors(weights))
        system = system_of(named)
        try:
            if options is not None and settings is not None and is_roibeam_config(settings):
                model_class, config, state, changes = _by_our_config(system, named, settings, options)
            else:
                model_class, config, state, changes = system.understand(named, settings)
        except KeyError as error:
            raise ValueError(f"no parameter for {error}; is this a whole checkpoint?") from None
        changes += (assumed(config),) if options is None else ()
        model = build_model(lambda: model_class(config), state)
    return ModelCheckpoint(model, weights, None, changes, assumed=options is None)


def _by_our_config(
    system: PublishedModel, official: Mapping[str, Tensor], settings: Mapping[str, Any], where: Path
) -> Understood:
    model_class = class_of(settings, where)
    if not issubclass(config_class_of(model_class), system.config_class):
        raise ValueError(f"its parameters are of {system.name}, {where} is of a {model_class.__name__}")
    try:
        config: Any = config_class_of(model_class).from_dict(dict(settings))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Understood(model_class, config, *system.rename(official, config))


def _as_float32(found: Mapping[str, object]) -> dict[str, Tensor]:
    """Tensors of floating point as float32; counters as they are."""
    tensors = {}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name!r} is of type {type(value).__name__}; a tensor is wanted")
        tensors[name] = value.float() if value.is_floating_point() else value
        check_finite(name, value)
    return tensors


def check_finite(name: str, tensor: Tensor) -> None:
    """Raises ValueError for a parameter that holds NaN or infinity."""
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ValueError(f"parameter {name} holds NaN or infinity; the file is of a training that failed")


def build_model(make: Callable[[], AnyModule], state: Mapping[str, Tensor]) -> AnyModule:
    """The model that `make` returns, in evaluation mode, with these parameters and no others."""
    model = _on_meta(make, _PARAMETERS_MORE * (len(state) + 1))
    check_parameters(state, model.state_dict())
    # Copy: a file's tensors start anywhere, kernels then sum in another order, and outputs would differ from the
    # saved model's in the last digits.
    model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return model.eval()


def _on_meta(make: Callable[[], AnyModule], most: int) -> AnyModule:
    """The model that `make` returns, without values: sizes that do not fit the parameters allocate nothing. `most` is
    the largest number of parameters; ten million layers would take hours."""
    count = 0

    def count_one(_module: nn.Module, _name: str, _parameter: nn.Parameter) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise ValueError(f"the config makes it a model of more than {most:,} parameters, which the file has not")

    counting = register_module_parameter_registration_hook(count_one)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    finally:
        counting.remove()


def check_parameters(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Checks that `state` has the names and shapes of a model's own state, no more and no less."""
    differing = []
    for name in dict.fromkeys([*wanted, *state]):
        got, want = (tuple(each[name].shape) if name in each else "none" for each in (state, wanted))
        if got != want:
            differing.append(f"parameter {name}: the file has {got}, the config makes it {want}")
    if differing:
        more = f"; besides, {plural(len(differing) - 1, 'parameter')} more" if len(differing) > 1 else ""
        raise ValueError(differing[0] + more)
