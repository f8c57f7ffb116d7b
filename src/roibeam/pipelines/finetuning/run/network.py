"""Network of a task: a pre-trained model and a head, built from a start or from the configuration of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.weights.files import read_tensors
from roibeam.model.common.checkpoint import load_start
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.common.heads import DroppedLinear
from roibeam.model.common.transformer import Attention
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.task_heads import HEADS, AuxiliaryTaskModel, MatchModel, TaskModel, TextTaskModel
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.finetuning.rows import AUTO, CHOICE
from roibeam.pipelines.finetuning.systems.options import MATCH, RELEASE, RELEASE_MT
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec, ReleaseHead, TaskSystem
from roibeam.pipelines.finetuning.task import AuxiliaryTargets
from roibeam.pipelines.training.model_files.joint_checkpoint import describe_joint, load_joint, region_encoder_of
from roibeam.pipelines.training.model_files.model_checkpoint import WEIGHTS, build_model, config_class_of, naming_model
from roibeam.pipelines.training.model_files.model_folder import CONFIG, MAX_CONFIG_BYTES, TASK_MODEL
from roibeam.pipelines.training.model_files.model_start import changed_model
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


@dataclass(frozen=True, eq=False)
class TaskNetwork:
    """
    Attributes:
        module: maps a `VLBatch` to the scores that `group_scores` takes.
        encoder_config: of the pre-trained model in it.
        described: settings to build it again; config.json beside its weights.
    """

    module: nn.Module
    encoder_config: Any
    described: Mapping[str, Any]


_BESIDE = "region_class_head."  # parameters that no prediction reads


def started_network(
    system: TaskSystem,
    model: Any,
    output: OutputSpec,
    head: str,
    *,
    source: object,
    beside: AuxiliaryTargets | None = None,
    num_input_classes: int = 0,
    grounding: str = AUTO,
) -> TaskNetwork:
    """A network that starts from a pre-trained model; its head is drawn from torch's random state.

    Args:
        model: of the system, with its pre-training heads, which are not trained.
        head: one of `HEAD_KINDS`.
        source: where the model came from, for people.
        num_input_classes: classes of regions, as inputs of the model; 0 for none.
        grounding: one of `GROUNDINGS`.
    Raises:
        ValueError: when system or model have no such head or no place for classes, grounding or auxiliary targets, or
            the model reads classes and the task has none.
    """

    def changed(model: Any, fields: Mapping[str, Any], state: Mapping[str, Tensor] | None = None) -> Any:
        if all(getattr(model.config, name) == value for name, value in fields.items()):
            return model
        return changed_model(model, fields, source=source, state=state)

    model = changed(model, system.needed_fields(output, grounding))
    if output.num_images > 1 and system.pair_start is not None:
        model = changed(model, *system.pair_start(model))
    if num_input_classes:
        if system.class_input_start is None:
            raise ValueError(f"told_classes: {system.name} has no place for classes of regions; leave it at false")
        model = changed(model, *system.class_input_start(model, num_input_classes))
    elif system.reads_input_classes(model.config):
        raise ValueError(
            f"{source}: this model reads the class of each region, and the task has none; "
            "start from the model that it was fine-tuned from"
        )
    if head in (RELEASE, RELEASE_MT):
        release = system.release_head(head, model.config, output)
        if beside is None:
            config = release.config(model.config, output.num_labels)
        elif release.beside is None:
            raise ValueError(f"{system.name}'s release learns nothing beside this task; set head.kind to 'ours'")
        else:
            config = release.beside(model.config, beside)
        module: Any = release.network(config)
        load_start(module, dict(release.start(model.state_dict(), list(module.state_dict()))))
        return _release_network(module, release, system)
    if head == MATCH:
        if output.form != CHOICE or output.num_images > 1 or beside is not None:
            raise ValueError("head.kind 'match' scores pairs of a text and an image: of retrieval; set it to 'ours'")
        try:
            return _match_network(MatchModel(model), system)
        except ValueError as error:
            raise ValueError(f"head.kind 'match': {source}: {error}; set head.kind to 'ours'") from None
    own_head = system.new_head(model.config, output)
    if beside is None:
        return _task_network(_model_class(output)(model, own_head), system)
    every = bool(beside.class_names) and not beside.hidden_regions
    module = AuxiliaryTaskModel(
        model, own_head, num_classes=len(beside.class_names),
        with_whole_image=every and system.classifies_whole_image, with_words=beside.hidden_words > 0,
    )  # fmt: skip
    return _task_network(module, system)


def set_dropout(network: TaskNetwork, share: float) -> None:
    """Sets the share of every dropout of model and head."""
    for module in network.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
        elif isinstance(module, DroppedLinear):
            module.dropout = share
        elif isinstance(module, Attention):
            module.attention_dropout = share


def start_from_words(network: TaskNetwork, labels: Sequence[str], tokenizer: CaptionTokenizer) -> None:
    """Initialises the last layer of a new head: each label at the mean of the embeddings of its word pieces. Raises
    ValueError when the head has no such start, or a label has no piece."""
    module: Any = network.module
    if not hasattr(module, "start_from_words"):
        raise ValueError("head.start 'words': only the head of VL-BERT's release for labels starts so; leave it out")
    pieces = [tokenizer.encode(label).ids[1:-1].tolist() for label in labels]
    empty = next((label for label, own in zip(labels, pieces, strict=True) if not own), None)
    if empty is not None:
        raise ValueError(f"head.start 'words': the label {empty!r} has no word piece; take it out of the labels")
    module.start_from_words(pieces)


def with_encoder(network: TaskNetwork, encoder: RegionEncoder, choices: EndToEndChoices) -> TaskNetwork:
    """The network with the encoder that makes its features of photos; its module takes an `ImageBatch` too. Raises
    ValueError as `EndToEndModel`."""
    joint = EndToEndModel(network.module, encoder, choices)
    return TaskNetwork(joint, network.encoder_config, describe_joint(joint, network.described))


def read_network(folder: Path, system: TaskSystem, output: OutputSpec) -> TaskNetwork:
    """The network of a fine-tuning checkpoint, in evaluation mode; of a run from photos with its encoder.

    Args:
        folder: with config.json and weights.
    """
    settings = read_json_object(folder / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    if "end_to_end" in settings:
        joint = load_joint(
            folder,
            make_model=lambda described: _network(described, system, output, lambda make: make(), folder).module,
            left_out=_BESIDE,
        )
        region_encoder_of(joint).to(memory_format=torch.channels_last)  # as it was trained
        return TaskNetwork(joint, joint.model.config, settings)
    state = {
        name: value
        for name, value in read_tensors(folder / WEIGHTS).items()
        if isinstance(value, Tensor) and not name.startswith(_BESIDE)
    }
    return _network(settings, system, output, lambda make: build_model(make, state), folder)


def _network(
    settings: Mapping[str, Any],
    system: TaskSystem,
    output: OutputSpec,
    build: Callable[[Callable[[], Any]], Any],
    folder: Path,
) -> TaskNetwork:
    """A network on stored features, or the part of one from photos that reads features.

    Args:
        settings: config.json of the model with its head.
        build: a function that makes the module -> the module with its weights.
    """
    with naming_model(folder):
        if settings.get("model_type") != TASK_MODEL:
            release = system.written_head("".join(settings["architectures"]), output)
            network_class: Any = release.network
            config = network_class.config_class.from_dict(settings)
            return _release_network(build(lambda: network_class(config)), release, system)
        model_class: Any = system.model_class
        encoder = config_class_of(model_class).from_dict(settings["model"])
        if settings["head"]["model_type"] == MATCH:
            return _match_network(build(lambda: MatchModel(model_class(encoder))), system)
        head_class = HEADS[settings["head"]["model_type"]]
        head: Any = head_class.config_class
        module = build(lambda: _model_class(output)(model_class(encoder), head_class(head.from_dict(settings["head"]))))
    return _task_network(module, system)


def _model_class(output: OutputSpec) -> type[TaskModel]:
    return TaskModel if output.num_images else TextTaskModel


def _release_network(module: Any, release: ReleaseHead, system: TaskSystem) -> TaskNetwork:
    """A network with the head of a release, whose heads of other tasks are not trained."""
    if release.head:
        _train_only(module, (*system.trained, release.head))
    described = {**module.config.to_diff_dict(), "architectures": [release.official]}
    return TaskNetwork(module, module.config, described)


def _task_network(module: TaskModel, system: TaskSystem) -> TaskNetwork:
    """A network with roibeam's own head; pre-training heads are not trained, except that of auxiliary words."""
    model: Any = module.model
    kept = ("masked_word_head.",) if getattr(module, "with_words", False) else ()
    _train_only(model, (*system.trained, *kept))
    if isinstance(module, TextTaskModel):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not any(part in name for part in system.unread_alone))
    return _own_network(module, module.head.config.to_diff_dict())


def _match_network(module: MatchModel, system: TaskSystem) -> TaskNetwork:
    """A network with the pre-training head for pairs; the other heads are not trained."""
    model: Any = module.model
    _train_only(model, (*system.trained, "match_head.", "relationship_head."))
    return _own_network(module, {"model_type": MATCH})


def _own_network(module: Any, head: Mapping[str, Any]) -> TaskNetwork:
    """A network without a head of a release; `head` describes its own."""
    model = module.model
    own = {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}
    return TaskNetwork(module, model.config, {"model_type": TASK_MODEL, "model": own, "head": head})


def _train_only(module: nn.Module, beginnings: tuple[str, ...]) -> None:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(beginnings) and parameter.requires_grad)
