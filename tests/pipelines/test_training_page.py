"""The report of a training run says what its folder holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from toy_training import ToyTask, config, log_of, run

from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.run_folder.training_page import write_training_page

SCORES = [0.1, 0.5, 0.9, 0.7, None]  # before the first step, then after 3, 6, 9 and 12


@pytest.fixture
def page(tmp_path: Path) -> str:
    settings = config(evaluate_every=3, best_by="score", average_rate=0.9)
    train(ToyTask(scores=SCORES), settings, tmp_path / "run", description={"name": "<b>bold</b>"})
    return (tmp_path / "run" / "report.html").read_text()


def test_it_shows_curves_evaluations_and_the_best(page: str, tmp_path: Path) -> None:
    training, evaluations = (part.partition("</section>")[0] for part in page.split("<section>")[1:3])
    names = [name for name in log_of(tmp_path / "run")[0] if name not in ("step", "samples", "epoch")]
    titles = re.findall(r'font-weight="bold">([a-z ]+), last', training)
    assert titles == [name.replace("_", " ") for name in names]
    assert "of the weights' exponential average, best by score after step 6" in evaluations
    assert "Evaluations <small>5," in evaluations and evaluations.count("<tr") == 6
    assert re.search(r'<tr class="best"><td>6</td><td>2.4</td><td>0.9</td>', evaluations)
    assert "<li>checkpoints/step-00000006 (best)</li>" in page and "<li>checkpoints/step-00000012</li>" in page


def test_settings_are_all_there_and_harmless(page: str) -> None:
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold" not in page
    for name in ("train.average_rate", "train.best_by", "train.learning_rate", "task.name", "global_batch"):
        assert f'<th scope="row">{name}</th>' in page
    assert "Not finished" not in page and "<script" not in page


def test_a_run_that_stopped_early_says_so(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=5)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>Not finished.</b> 5 of 12 steps" in page and "Evaluations" not in page


def test_many_evaluations_are_thinned_but_for_the_best(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=1)
    lines = [
        {"step": step, "samples": 4 * step, "epoch": 0.1, "score": float(step), "seconds": 0.1} for step in range(500)
    ]
    (tmp_path / "run" / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_training_page(tmp_path / "run", best_step=7).read_text()
    steps = [int(step) for step in re.findall(r"<tr[^>]*><td>(\d+)</td>", page)]
    assert len(steps) == 31 and steps[0] == 0 and 7 in steps and steps[-1] == 499
