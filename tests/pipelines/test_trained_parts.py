"""Parts of a model by name: what is frozen keeps every bit, and what has a rate of its own has it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_finetuning import SmallFinetuning, make_task
from small_pretraining import settings
from task_groups import small_network

from roibeam.pipelines.finetuning.rows import LABEL
from roibeam.pipelines.training.optimizer import chosen_groups, freeze_parts
from roibeam.pipelines.training.train_config import TrainConfig, with_settings


def trained(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("system", "head", "frozen", "left"),
    [
        ("vlbert", "ours", ("model",), "head."),
        ("vilbert", "release-mt", ("model",), "answer_head."),
        ("vilbert-single-stream", "ours", ("model",), "head."),
        ("visualbert", "ours", ("head", "embeddings", "pooler"), "model.visualbert.encoder."),
        ("imagebert", "ours", ("model.imagebert.encoder", "embeddings", "model.pooler"), "head."),
    ],
)
def test_a_part_is_all_that_its_name_begins(system: str, head: str, frozen: tuple[str, ...], left: str) -> None:
    """ "model" is the pre-trained model whatever the head is and whatever wraps it."""
    model = small_network(system, LABEL, head=head).module
    before = trained(model)
    freeze_parts(model, frozen)
    assert trained(model) == {name for name in before if name.startswith(left)}


def test_a_name_ends_at_a_dot() -> None:
    """So layer 1 is not layer 10, and "head" not "heads"."""
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(11))})
    freeze_parts(model, ["layers.1"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"layers.1.weight", "layers.1.bias"}


def test_what_is_frozen_keeps_every_bit_and_a_run_goes_on(tmp_path: Path) -> None:
    """With decay, an average and a rate of its own for the head; a stop in between changes nothing."""
    fields: dict[str, Any] = {"frozen": ("model",), "rates": {"head": 10}, "weight_decay": 0.1, "average_rate": 0.9}
    config = settings(steps=4, checkpoint_every=2, **fields)
    run: dict[str, Any] = {"batch_size": 2, "kind": LABEL, "dropout": 0.1}
    SmallFinetuning(tmp_path / "run", config, **run, stop_at_step=2)()
    SmallFinetuning(tmp_path / "run", config, **run)()
    SmallFinetuning(tmp_path / "whole", config, **run)()
    begun = make_task("vlbert", LABEL, batch_size=2, dropout=0.1).model.state_dict()
    ended, whole = weights(tmp_path / "run", 4), weights(tmp_path / "whole", 4)
    assert all(torch.equal(ended[name], whole[name]) for name in whole)
    moved = {name for name, tensor in ended.items() if not torch.equal(tensor, begun[name])}
    assert moved == {name for name in ended if name.startswith("head.")}
    with pytest.raises(ValueError, match=r"train.frozen: \['model'\] -> \[\]"):
        SmallFinetuning(tmp_path / "run", settings(steps=5, **{**fields, "frozen": ()}), **run)()


def scales(config: TrainConfig, *names: str) -> list[float]:
    """Of parameters of a VL-BERT, the rate of the optimizer's group relative to the run's."""
    task = make_task("vlbert", LABEL, batch_size=2)
    groups = chosen_groups(task.model, task.parameter_groups, config)
    found = {id(each): group.get("learning_rate_scale", 1.0) for group in groups for each in group["params"]}
    parameters = dict(task.model.named_parameters())
    assert len(found) == len(trained(task.model)) == sum(len(list(group["params"])) for group in groups)
    return [found[id(parameters[name])] for name in names]


def test_a_rate_is_that_of_the_most_exact_name() -> None:
    words, norm = "model.vlbert.embeddings.words.weight", "model.vlbert.embeddings.norm.bias"
    layer, head = "model.vlbert.encoder.layers.0.feed_forward_norm.bias", next(
        name for name in trained(make_task("vlbert", LABEL, batch_size=2).model) if name.startswith("head.")
    )  # fmt: skip
    rates = {"embeddings.words": 0.1, "model": 0.5, "embeddings": 0.25, "head": 10}
    assert scales(settings(rates=rates), words, norm, layer, head) == [0.1, 0.25, 0.5, 10]
    assert scales(settings(), words, norm, layer, head) == [1, 1, 1, 1]
    assert scales(settings(rates=rates, parameter_groups="vl-bert"), words, head) == [0.1, 10]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"frozen": ("embedings",)}, "frozen: 'embedings' names nothing that is trained; did you mean embeddings"),
        ({"frozen": ("masked_word_head",)}, r"choose one of embeddings, .*head, .*, model, or what is in one, such as"),
        ({"frozen": ("enc",)}, "names nothing that is trained"),
        ({"frozen": ("model", "head")}, "leaves nothing to train"),
        ({"frozen": ("model",), "rates": {"encoder": 0.1}}, "train.rates: 'encoder' names nothing that is trained"),
    ],
)
def test_a_name_of_nothing_is_refused(fields: dict[str, Any], says: str) -> None:
    task = make_task("vlbert", LABEL, batch_size=2)
    with pytest.raises(ValueError, match=says):
        chosen_groups(task.model, task.parameter_groups, settings(**fields))


def test_both_are_settings_of_a_command() -> None:
    config = with_settings(settings(), ['train.frozen=["embeddings"]', 'train.rates={"head": 10}'])
    assert (config.frozen, config.rates) == (("embeddings",), {"head": 10})
    for setting, says in (
        ("train.frozen=embeddings", r'expected a list, such as \["name"\], got'),
        ("train.frozen=[1]", "frozen must name parts of the model"),
        ('train.rates={"head": 0}', "rates must have a factor above 0"),
        ("train.rates=3", "rates must have a factor above 0"),
        ("train.rates=head", "expected an object"),
    ):
        with pytest.raises(ValueError, match=says):
            with_settings(settings(), [setting])
