"""Which system a pre-training run is for, where none is named."""

from pathlib import Path

import pytest

from roibeam.pipelines.pretraining.recipes.named_systems import NAMED_SYSTEMS
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_settings import chosen_system, recorded_recipe_notes
from roibeam.pipelines.pretraining.systems import SYSTEMS

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
    assert {name: each.architecture for name, each in NAMED_SYSTEMS.items()} == {
        name: system.model_class.__name__ for name, system in SYSTEMS.items()
    }


def test_a_recipe_goes_on_from_a_named_checkpoint(tmp_path: Path) -> None:
    """What a new run of the recipe would have is compared without that checkpoint, which a new run cannot have."""
    model, training = RequestedModel(recipe="imagebert-stage-1", toy=True), RequestedTraining(resume_from="step-2")
    assert recorded_recipe_notes(PretrainRequest(tmp_path / "run", model=model, training=training)) == []
