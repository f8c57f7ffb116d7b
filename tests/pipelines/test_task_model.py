"""A fine-tuned model that is asked in Python: two images for each text, texts alone, and runs that are not asked so."""

from pathlib import Path
from typing import Any

import pytest
from task_groups import small_network, store, tokenizer

from roibeam.pipelines.finetuning.rows import CHOICE, LABEL
from roibeam.pipelines.finetuning.run import task_model
from roibeam.pipelines.finetuning.run.predict_run import TrainedTask
from roibeam.pipelines.finetuning.run.task_model import LoadedTaskModel, load_task_model
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.training.model_files.model_folder import FoundModel


def loaded(name: str, folder: Path, system: str = "vilbert") -> LoadedTaskModel:
    """With new weights, of a task whose files are not there."""
    named = TASKS[name]
    task = named.open(folder, named.options(), None)
    asked = OutputSpec(LABEL, len(task.labels) or 1, num_images=task.num_images)
    network = small_network(system, "pair" if task.num_images > 1 else LABEL, asked=asked)
    trained = TrainedTask(FoundModel(folder), network, SYSTEMS[system], asked, LayoutOptions(), task, folder)
    assert task.directly is not None
    return LoadedTaskModel(trained, task.directly, tokenizer())


def test_a_statement_is_about_two_images_in_their_order(tmp_path: Path) -> None:
    model, records = loaded("nlvr2", tmp_path), store()
    shown = [records["image-0"], records["image-4"]]
    first, turned = model.answer(["a red thing", "a red thing"], [shown, shown[::-1]])
    assert set(first.scores) == {"False", "True"} and first.label == next(iter(first.scores))
    assert first.scores["True"] != turned.scores["True"]
    with pytest.raises(ValueError, match="question 0: 1 image; nlvr2 has 2 images"):
        model.answer(["a red thing"], [shown[0]])


@pytest.mark.parametrize(
    ("name", "texts", "labels"), [("sst-2", "a", 2), ("mrpc", ("a", "b"), 2), ("sts-b", ("a", "b"), 0)]
)
def test_texts_alone_show_no_image(tmp_path: Path, name: str, texts: Any, labels: int) -> None:
    model = loaded(name, tmp_path, "visualbert")
    (answer,) = model.answer([texts])
    assert len(answer.scores) == len(model.labels) == labels
    assert answer.label in model.labels or (not labels and 0 <= float(answer.label) <= 5)
    with pytest.raises(ValueError, match="shows no image; leave regions out"):
        model.answer([texts], [store()["image-0"]])


def test_a_task_with_choices_in_its_files_is_asked_by_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_model, "task_checkpoint", lambda folder: FoundModel(folder))
    monkeypatch.setattr(task_model, "saved_config", lambda folder: {"task": {"task": "vcr", "form": CHOICE}})
    with pytest.raises(ValueError, match=r"chooses among choices or regions .* use roibeam predict, .* \(task vcr\)"):
        load_task_model(tmp_path)
