"""What may be asked of which model: a task's model is refused, also where it keeps the heads of pre-training."""

from pathlib import Path

import pytest
import torch
from evaluated_models import MODELS
from evaluated_models import build as build_asked
from test_model_checkpoint import OURS_ALONE, PUBLISHED
from tiny_commands import Cli, Pictures, one_line

from roibeam.pipelines.analysis.analysis_settings import check_new, default_output_path
from roibeam.pipelines.analysis.load_for_evaluation import (
    NO_MATCH_HEAD,
    PRETRAINING_MODELS,
    TASK_MODELS,
    pretraining_model,
)
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.model_checkpoint import MODEL_CLASSES, ModelCheckpoint

MADE = {**PUBLISHED, **OURS_ALONE}
TASKS = [name for name in MADE if " for " in name or "multi-task" in name]


def test_every_class_of_checkpoint_is_asked_or_refused() -> None:
    assert sorted([*PRETRAINING_MODELS, *TASK_MODELS], key=str) == sorted(MODEL_CLASSES, key=str)
    assert {type(MADE[name]()) for name in TASKS} == set(TASK_MODELS)
    for name in MODELS:
        found = ModelCheckpoint(build_asked(name), Path("run"))
        assert pretraining_model(found, named="run", verb="probe") is found.model


@pytest.mark.parametrize("name", TASKS)
def test_no_task_model_is_asked(name: str) -> None:
    """Some of them have a match head from before their training on a task; it would rank, plausibly and wrong."""
    model = MADE[name]()
    with pytest.raises(ValueError) as caught:
        pretraining_model(ModelCheckpoint(model, Path("run")), named="run", verb="evaluate")
    said = str(caught.value)
    assert said.startswith(f"run: {type(model).__name__} is fine-tuned for {TASK_MODELS[type(model)]}; it no longer ")
    assert said.endswith("; evaluate the pre-trained model that it began from") and "\n" not in said


def test_the_commands_refuse_a_fine_tuned_model(pictures: Pictures, tmp_path: Path, roibeam: Cli) -> None:
    PUBLISHED["ViLBERT for tasks"]().save_pretrained(tmp_path / "tuned")
    asked = ("--store", pictures.store, "--out", tmp_path / "o.svg")
    record = min(pictures.photos.iterdir()).stem
    for command in (("evaluate", tmp_path / "tuned"), ("probe", tmp_path / "tuned", record, "a [MASK]")):
        said = one_line(roibeam(*command, *asked))
        assert "ViLbertForTasks is fine-tuned for VQA, VCR" in said
        assert f"; {command[0]} the pre-trained model that it began from" in said
    assert not (tmp_path / "o.svg").exists()


def test_who_has_a_match_head() -> None:
    """The line that says it follows from what the systems' models are."""
    for name, system in SYSTEMS.items():
        for size in {"small", "paper-small"} & set(system.sizes):
            with torch.device("meta"):
                model = system.model_class(system.sizes[size]())
            has = any("match_head" in key or "relationship_head" in key for key in model.state_dict())
            assert has == (name != "vlbert" or size == "paper-small"), (name, size)
    named = NO_MATCH_HEAD.partition("--system ")[2].partition(", and with")[0].replace(" or ", ", ").split(", ")
    assert sorted(named) == sorted(set(SYSTEMS) - {"vlbert"})
    assert NO_MATCH_HEAD.endswith("--system vlbert --model paper-small")


def test_an_answer_never_takes_the_place_of_anything(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    assert default_output_path(str(run), None, "probe.svg") == run / "probe.svg"
    (run / "probe.svg").write_text("mine")
    (run / "probe-2.svg").write_text("mine")
    assert default_output_path(str(run), None, "probe.svg") == run / "probe-3.svg"
    (run / "evaluation").mkdir()  # of an evaluation that stopped
    assert default_output_path(str(run), None, "evaluation") == run / "evaluation"
    (run / "evaluation" / "results.json").write_text("{}")
    assert default_output_path(str(run), None, "evaluation") == run / "evaluation-2"
    assert default_output_path(str(run), tmp_path / "new", "evaluation") == tmp_path / "new"
    with pytest.raises(ValueError, match=r"evaluation is there already and is not empty \('results.json' is in it\)"):
        default_output_path(str(run), run / "evaluation", "evaluation")
    with pytest.raises(ValueError, match=r"probe.svg is there already and is a file; nothing is replaced"):
        check_new(run / "probe.svg")
    for spec in (str(run / "checkpoints"), "hf:owner/name", "a.bin"):
        with pytest.raises(
            ValueError, match="is no run's folder: name the folder to write with --out, such as --out evalu"
        ):
            default_output_path(spec, None, "evaluation")
    staged = tmp_path / "staged"
    staged.mkdir()
    (staged / "stages.json").write_text("{}")
    assert default_output_path(str(staged), None, "evaluation") == staged / "evaluation"
