"""Settings looked at without torch: what the model would refuse in the same words, and nothing that data could fit;
and which system a run is for where none is named."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from finetune_requests import request as finetuning

from roibeam.extraction.network.config import CONFIGS
from roibeam.pipelines.common.console.overrides import TRAIN_NAMES
from roibeam.pipelines.finetuning.run.finetune_settings import config_of
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS as TASK_SYSTEMS
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions
from roibeam.pipelines.pretraining.checked_request import check_settings
from roibeam.pipelines.pretraining.recipes.named_systems import NAMED_SYSTEMS
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_settings import chosen_system, recorded_recipe_notes
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.detector.train_request import _settings
from roibeam.pipelines.training.requests import DetectorTrainRequest
from roibeam.pipelines.training.train_config import TrainConfig, with_settings


def check(model: RequestedModel, *settings: str, goes_on: bool = False, **given: Any) -> None:
    request = PretrainRequest(Path("run"), model=model, training=RequestedTraining(set=settings, **given))
    check_settings(request, None if model.recipe is None else RECIPES[model.recipe], None, goes_on=goes_on)


@pytest.mark.parametrize("name", NAMED_SYSTEMS)
def test_fields_refuse_what_the_configuration_refuses_in_the_same_words(name: str) -> None:
    system = NAMED_SYSTEMS[name]
    config: Any = type(system.sizes["small"]())
    assert issubclass(config, system.fields) and config.own_fields() == system.fields.own_fields()
    for wrong in ({"hidden_size": "abc"}, {"hidden_size": 33}, {"num_attention_heads": 0}, {"hidden_activation": "x"},
                  {"hidden_size": True}, {"hidden_dropout": None}):  # fmt: skip
        with pytest.raises(ValueError) as of_config:
            config(**wrong)
        with pytest.raises(ValueError) as of_fields:
            system.fields(**wrong)
        assert str(of_fields.value) == str(of_config.value)
        assert str(of_fields.value).startswith(f"{config.__name__}: ")


@pytest.mark.parametrize("name", NAMED_SYSTEMS)
def test_tiny_is_one_model_without_dropout(name: str) -> None:
    """The same of pre-training and of tasks."""
    tiny: Any = NAMED_SYSTEMS[name].sizes["tiny"]()
    of_tasks: Any = TASK_SYSTEMS[name].sizes["tiny"]()
    assert tiny.to_dict() == of_tasks.to_dict() and tiny.hidden_size == 64
    assert not any(value for field, value in tiny.to_dict().items() if field.endswith("dropout"))


@pytest.mark.parametrize("toy", [False, True])
def test_every_size_and_recipe_is_accepted(toy: bool) -> None:
    for name, system in NAMED_SYSTEMS.items():
        for size in system.sizes:
            check(RequestedModel(system=name, model=size), "train.keep=3", "data.workers=0")
    for recipe in RECIPES:
        check(RequestedModel(recipe=recipe, toy=toy))


@pytest.mark.parametrize("system", ["vilbert", "interbert"])
def test_widths_that_the_stores_decide_are_not_held_against_the_presets(system: str) -> None:
    model = RequestedModel(system=system)
    check(model, "model.region_loss=regression")
    check(model, "model.region_loss=regression", "model.region_target_size=64")
    check(model, "model.region_loss=regression", "model.region_feature_size=64")
    both = ("model.region_loss=regression", "model.region_feature_size=64", "model.region_target_size=65")
    with pytest.raises(ValueError, match=r"predicts features of width 64, region_target_size is 65"):
        check(model, *both)


def test_sizes_that_come_with_another_model_are_not_held_against_the_presets() -> None:
    """A BERT of 12 heads, a run of 3: the small preset has 4."""
    odd = "model.hidden_size=33"
    with pytest.raises(ValueError, match=r"model settings {'hidden_size': 33}: ImageBertConfig: hidden_size 33 is not"):
        check(RequestedModel(system="imagebert"), odd)
    for model in (RequestedModel(system="imagebert", from_run="x"), RequestedModel(system="imagebert", from_bert="x")):
        check(model, odd)
        with pytest.raises(ValueError, match=r"hidden_size must be of type int, got 'abc'"):
            check(model, "model.hidden_size=abc")
    check(RequestedModel(system="imagebert"), odd, goes_on=True)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"train has no field 'x'.*data has no field 'y'.*model has no field 'z'"):
        check(RequestedModel(system="vlbert"), "train.x=1", "data.y=1", "model.z=1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.momentum=0.5"], "--set 'train.momentum=0.5' has no effect: it is for the optimizer sgd, not adamw"),
        (["train.optimizer=sgd", "train.betas=[0.9, 0.98]"], "is for other optimizers than sgd"),
        (["train.decay_factor=0.5"], "is for the schedules steps and plateau, not linear; leave it out"),
        (["train.plateau_patience=3"], "is for the schedule plateau, not linear"),
        (["train.best_is=lowest"], "is for best_by, and none is set"),
        (["train.average_start=initial"], "is for an average, and average_rate is 0"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(settings: list[str], words: str) -> None:
    """What the user gives; what a recipe has for another optimizer or schedule stays as published."""
    with pytest.raises(ValueError, match=re.escape(words)):
        check(RequestedModel(system="vlbert"), *settings)
    check(RequestedModel(system="vlbert"), *settings[:-1], settings[-1].partition("=")[0] + "=" + default(settings[-1]))
    changed = with_settings(TrainConfig(steps=1, betas=(0.8, 0.9), average_start="initial"), ["train.optimizer=sgd"])
    assert (changed.betas, changed.average_start) == ((0.8, 0.9), "initial")


def default(setting: str) -> str:
    """The default of the field that a setting names, as a setting has it."""
    name = setting.partition("=")[0].removeprefix("train.")
    value = next(each.default for each in fields(TrainConfig) if each.name == name)
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(
    ("given", "setting", "words"),
    [
        ({"learning_rate": 0.001}, "train.learning_rate=0.5", "--learning-rate 0.001 and --set train.learning_rate="),
        ({"steps": 6}, "train.steps=7", "--steps 6 and --set train.steps=7 are two values for one thing; give one of"),
        ({"warmup_steps": 1}, "train.warmup_steps=0.5", "--warmup-steps 1 and"),
        ({"batch_size": 4}, "data.batch_size=8", "--batch-size 4 and"),
        ({"seed": 1}, "train.seed=2", "--seed 1 and"),
        ({"device": "cpu"}, "train.device=auto", "--device cpu and"),
    ],
)
def test_an_option_and_a_setting_do_not_say_two_things(given: dict[str, Any], setting: str, words: str) -> None:
    """One of them was taken without a word."""
    with pytest.raises(ValueError, match=re.escape(words)):
        check(RequestedModel(system="vlbert"), setting, **given)
    alike = f"{setting.partition('=')[0]}={next(iter(given.values()))}"
    check(RequestedModel(system="vlbert"), alike, **given)
    of_detector = setting.replace("data.", "photos.")
    with pytest.raises(ValueError, match="are two values for one thing"):
        _settings(DetectorTrainRequest(labels="labels", set=(of_detector,), **given), CONFIGS["small"])
    with pytest.raises(ValueError, match="are two values for one thing"):
        config_of(finetuning(set=[setting], **given), VqaOptions, None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gradient_accumulation_steps", "here it is train.accumulation"),
        ("freeze", "here it is train.frozen"),
        ("dropout", "here it is model.dropout of finetune, model.hidden_dropout"),
        ("log_every", "here it is nothing to set: log.jsonl has every step"),
        ("total_gradient_accumulation_steps", "did you mean accumulation or steps?"),
    ],
)
def test_a_name_of_others_is_answered_with_ours(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"train has no field '{name}'; {words}")):
        check(RequestedModel(system="vlbert"), f"train.{name}=4")


def test_the_names_of_others_lead_to_settings_that_there_are() -> None:
    ours = {each.name for each in fields(TrainConfig)}
    words = [word.strip(",;") for told in TRAIN_NAMES.values() for word in told.split()]
    named = {word.removeprefix("train.") for word in words if word.startswith("train.")}
    assert len(named) > 10 and named <= ours and not ours & TRAIN_NAMES.keys()


KEPT = Path(__file__).parents[1] / "data" / "kept"  # written when VL-BERT was the default


@pytest.mark.parametrize(
    ("named", "system"),
    [
        ({}, "imagebert"),
        ({"out": KEPT / "run"}, "vlbert"),  # the same command goes on with the run it began
        ({"out": KEPT / "run", "training": RequestedTraining(resume=False)}, "imagebert"),
        ({"out": KEPT / "run", "model": RequestedModel(system="vilbert")}, "vilbert"),
        ({"model": RequestedModel(from_run=str(KEPT / "run"))}, "vlbert"),
        ({"model": RequestedModel(from_run=str(KEPT / "model"))}, "visualbert"),
        ({"model": RequestedModel(from_run=str(KEPT / "store"))}, "imagebert"),  # no model there: said later
        ({"data": RequestedData(text_corpus=[Path("text.txt")])}, "vlbert"),
        ({"data": RequestedData(task_text=[Path("train.jsonl")])}, "visualbert"),
    ],
)
def test_what_is_there_decides_before_the_default(named: dict[str, object], system: str, tmp_path: Path) -> None:
    assert chosen_system(PretrainRequest(**{"out": tmp_path / "new", **named})) == system  # type: ignore[arg-type]


def test_folders_name_their_systems_by_the_class_of_the_model() -> None:
    built = {name: system.model_class.__name__ for name, system in SYSTEMS.items()}
    assert {name: each.architecture for name, each in NAMED_SYSTEMS.items()} == built


def test_a_recipe_goes_on_from_a_named_checkpoint(tmp_path: Path) -> None:
    """What a new run of the recipe would have is compared without that checkpoint, which a new run cannot have."""
    model, training = RequestedModel(recipe="imagebert-stage-1", toy=True), RequestedTraining(resume_from="step-2")
    assert recorded_recipe_notes(PretrainRequest(tmp_path / "run", model=model, training=training)) == []
