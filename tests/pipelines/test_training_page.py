"""The report of a training run says what its folder holds."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from toy_training import ToyTask, config, log_of, run

from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.run_folder.curves import dashed_levels, run_plots, stage_plots
from roibeam.pipelines.training.run_folder.report_page import write_training_page
from roibeam.pipelines.training.run_folder.run_summary import TrainingSummary, origins, training_seconds, write_summary

SCORES = [0.1, 0.5, 0.9, 0.7, None]  # before the first step, then after 3, 6, 9 and 12


@pytest.fixture
def page(tmp_path: Path) -> str:
    settings = config(evaluate_every=3, best_by="score", average_rate=0.9)
    train(ToyTask(scores=SCORES), settings, tmp_path / "run", description={"name": "<b>bold</b>"})
    return (tmp_path / "run" / "report.html").read_text()


def cells(page: str, row_head: str) -> list[str]:
    """Of the first table row that begins with a cell."""
    found = re.search(rf'<th scope="row"[^>]*>{re.escape(row_head)}</th>(.*?)</tr>', page)
    assert found is not None, row_head
    return re.findall(r"<td[^>]*>(.*?)</td>", found[1])


def test_it_begins_with_what_was_trained_and_shows_evaluations_and_the_best(page: str, tmp_path: Path) -> None:
    opening = page.partition("</header>")[0]
    assert re.search(r"A model, 163 weights, trained on 10 samples: 12 steps of 4 samples in \d+ s\.", opening), opening
    # A run of few steps has a table of them, each with all of its numbers.
    assert "<h2>Steps" in page and "<svg" not in page and not (tmp_path / "run" / "curves.svg").exists()
    twelfth = log_of(tmp_path / "run")[-1]
    assert cells(page, "12")[:2] == [f"{twelfth[name]:.4g}" for name in ("learning_rate", "loss")]
    evaluations = page.partition("<h2>Evaluations")[2]
    assert "of the weights' exponential average, best by score after step 6" in evaluations
    assert re.search(r'<tr class="strong"><th scope="row" class="number"[^>]*>6</th>.*?>0.9</td>', evaluations)
    assert "<li>checkpoints/step-00000006 (best)</li>" in page and "<li>checkpoints/step-00000012</li>" in page


def test_settings_are_all_there_and_harmless(page: str) -> None:
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold" not in page
    first, folded = page.partition("<h2>Settings")[2].split("<details>")
    assert cells(first, "learning rate, at its peak") == ["0.01"] and cells(first, "started from") == ["not recorded"]
    for name in ("train.average_rate", "train.best_by", "train.learning_rate", "task.name", "global_batch"):
        assert cells(folded, name)
    assert "Not finished" not in page and "<script" not in page


def test_a_long_value_is_whole(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(2000)]
    notes = ["<b> is drawn by `roibeam toyworld`"]
    train(ToyTask(), config(), tmp_path / "run", description={"names": names}, recorded={"notes": notes})
    assert "&lt;b&gt; is drawn by <code>roibeam toyworld</code>" in (tmp_path / "run" / "report.html").read_text()
    assert 'class 999", "class 1000"' in html.unescape((tmp_path / "run" / "report.html").read_text())


def test_a_run_that_stopped_early_says_so(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=5)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>Not finished.</b> 5 of 12 steps" in page and "Evaluations" not in page


def test_many_evaluations_are_thinned_but_for_the_best(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=1)
    numbers = {"samples": 4, "epoch": 0.1, "seconds": 0.1}
    lines = [{"step": step, "score": float(step), **numbers} for step in range(500)]
    (tmp_path / "run" / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_training_page(tmp_path / "run", best_step=7).read_text()
    evaluations = page.partition("<h2>Evaluations")[2].partition("</section>")[0]
    steps = [int(step) for step in re.findall(r'<th scope="row"[^>]*>(\d+)</th>', evaluations)]
    assert len(steps) == 31 and steps[0] == 0 and 7 in steps and steps[-1] == 499


def test_how_good_it_is_stands_beside_chance_in_words(tmp_path: Path) -> None:
    run(tmp_path / "run")
    evaluation = {"masked_words": 2.0, "masked_word_accuracy": 0.4, "matching_accuracy": 0.49, "alone_accuracy": 0.9}
    chance = {"masked_words": 5.5, "masked_word_accuracy": 0.12, "matching_accuracy": 0.5}
    items = {"masked_word_accuracy": 200, "matching_accuracy": 150}
    ends = {"masked_words": (1.5, 2.5), "masked_word_accuracy": (0.3, 0.5), "matching_accuracy": (0.4, 0.6)}
    summary = TrainingSummary("VisualBERT", "150 captions", True, evaluation, chance, items, intervals=ends)
    write_summary(tmp_path / "run", summary)
    page = write_training_page(tmp_path / "run", best_step=None).read_text()
    words, matching = "masked words 40.0 % right (clearly above chance, which is 12.0 %)", "matching 49.0 % right (at"
    assert f"{words}; {matching} chance, which is 50.0 %)" in page
    assert "roibeam evaluate treats all systems alike" in page and "interval of these figures" not in page
    loss = cells(page, "Masked words: loss")
    assert loss[:3] == ["2.000", "1.500 to 2.500", "5.500"] and "better than chance" in loss[4]
    assert cells(page, "Alone: right") == ["90.0 %", "", "", "", ""]  # no chance is known, so there is no verdict
    assert "words alone" not in page.lower()


def test_an_old_run_without_intervals_gets_no_verdict_and_says_why(tmp_path: Path) -> None:
    """Its page took answers for independent, and called 13.5 % of 281 words clearly above chance."""
    run(tmp_path / "run")
    old = {
        "system": "VisualBERT", "asked": "50 captions", "held_out": True, "evaluation": {"masked_word_accuracy": 0.135},
        "chance": {"masked_word_accuracy": 0.1}, "items": {"masked_word_accuracy": 281}, "words_alone": {},
    }  # fmt: skip
    (tmp_path / "run" / "summary.json").write_text(json.dumps(old))
    page = write_training_page(tmp_path / "run", best_step=None).read_text()
    assert "masked words 13.5 % right (chance: 10.0 %)." in page and "clearly above" not in page
    assert cells(page, "Masked words: right") == ["13.5 %", "", "10.0 %", "281", ""]
    assert "<b>Note:</b> The interval of these figures over images is not known" in page


def test_a_stopped_run_is_drawn_beside_chance_and_its_legend_names_only_what_is_drawn() -> None:
    levels = {"chance": {"score": 0.5}, "words alone": {"other": 0.5}}
    assert dashed_levels(LINES, [{"step": 0, "score": 0.1}], levels) == ["chance"]
    assert dashed_levels(LINES, EVALUATIONS, {"chance": {"text_to_image_r1": 0.1}}) == []  # in the names of its lines


def test_what_words_alone_give_stands_beside_it_and_an_old_run_has_none(tmp_path: Path) -> None:
    run(tmp_path / "run")
    chance, items = {"masked_word_accuracy": 0.12, "matching_accuracy": 0.5}, {"masked_word_accuracy": 200}
    evaluation = {"masked_word_accuracy": 0.4, "matching_accuracy": 0.49}
    alone = {"masked_word_accuracy": 0.31}
    told = TrainingSummary("VisualBERT", "150 captions", True, evaluation, chance, items, alone)
    write_summary(tmp_path / "run", told)
    page = write_training_page(tmp_path / "run", best_step=None).read_text()
    assert "masked words 40.0 % right (chance: 12.0 %; words alone: 31.0 %)" in page
    assert cells(page, "Masked words: right")[:5] == ["40.0 %", "", "12.0 %", "31.0 %", "200"]
    assert cells(page, "Matching: right")[:4] == ["49.0 %", "", "50.0 %", ""]
    old = json.loads((tmp_path / "run" / "summary.json").read_text())
    del old["words_alone"]
    (tmp_path / "run" / "summary.json").write_text(json.dumps(old))
    page = write_training_page(tmp_path / "run", best_step=None).read_text()
    assert cells(page, "Masked words: right")[:4] == ["40.0 %", "", "12.0 %", "200"]
    assert "words alone" not in page.lower()


def test_a_rerun_that_does_nothing_keeps_time_and_rate(tmp_path: Path) -> None:
    first = run(tmp_path / "run", stop_at_step=5)
    run(tmp_path / "run", resume=True)
    page = (tmp_path / "run" / "report.html").read_text()
    again = run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "report.html").read_text() == page
    lines = list(map(json.loads, (tmp_path / "run" / "log.jsonl").open()))
    assert again.seconds == training_seconds(lines) >= first.seconds > 0
    assert training_seconds([{"seconds": each} for each in (1.0, 2.5, 0.5, 4.0)]) == 6.5


# --- curves ---
def test_a_loss_that_is_always_0_has_no_plot() -> None:
    """A detector without attributes has one; its plot was empty."""
    lines = [{"step": step, "loss": 1.0 / step, "attributes": 0.0, "learning_rate": 0.0} for step in (1, 2)]
    titles = [plot.title for plot in run_plots(lines, [], {}, evaluated="held out")]
    assert titles == ["All losses together", "Learning rate"]


LINES = [
    {"step": step, "samples": step, "epoch": 1.0, "seconds": 1.0, "loss": 5.0 / step, "masked_word_accuracy": None,
     "learning_rate": 1e-3 * min(step, 50) / 50 if step < 1000 else 0.0}
    for step in range(1, 1001)
]  # fmt: skip
EVALUATIONS = [{"step": 0, "loss": 6.0, "text_to_image_r1": 0.1}, {"step": 1000, "loss": 2.0, "text_to_image_r1": 0.3}]


def test_curves_have_held_out_points_chance_and_the_rate_as_it_was() -> None:
    levels = {"chance": {"loss": 7.0}, "words alone": {"loss": 6.5, "masked_word_accuracy": 0.3}}
    plots = {plot.title: plot for plot in run_plots(LINES, EVALUATIONS, levels, evaluated="held out")}
    assert list(plots) == ["All losses together", "Text to image: found among the first", "Learning rate"]
    loss = plots["All losses together"]
    assert [series.name for series in loss.series] == ["mean of 4 steps", "running mean", "held out"]
    assert list(loss.series[2].y) == [6.0, 2.0] and [series.colour for series in loss.series] == [0, 0, 1]
    assert [(level.name, level.value) for level in loss.levels] == [("chance 7.000", 7.0), ("words alone 6.500", 6.5)]
    assert loss.levels[0].colour != loss.levels[1].colour
    assert loss.y_label == "loss"
    (rate,) = plots["Learning rate"].series
    assert max(rate.y) == pytest.approx(1.0) and rate.y[-1] == 0.0 and plots["Learning rate"].y_label == "rate (10⁻³)"


def test_stages_share_one_axis() -> None:
    plots = {plot.title: plot for plot in stage_plots([(LINES, EVALUATIONS), (LINES[:10], ())], evaluated="held out")}
    loss = plots["All losses together"]
    assert [(series.name, series.x[0], series.x[-1]) for series in loss.series] == [
        ("running mean", 4, 1000), ("held out", 0, 1000), ("", 1001, 1010),
    ]  # fmt: skip
    assert loss.marks == [(0.0, "stage 1"), (1000.0, "stage 2")]


def origin_config(recorded: dict[str, Any], task: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"task": {"model": {}, **(task or {})}, "recorded": recorded}


JOINT = {"model": {"model": {"region_encoder": {"detector": {"depth": 101}}}}}
STEP = "s5/det/checkpoints/step-00000060/model"


NEW = {"start": None, "bert": None}


@pytest.mark.parametrize(
    ("config", "started"),
    [
        (origin_config({"start": None, "bert": None}), ["new weights"]),
        (origin_config({"start": None, "bert": "hf:bert"}), ["the text model hf:bert; the other weights are new"]),
        (origin_config({"start": STEP, "bert": None}), [f"{STEP} (step 60 of the run s5/det)"]),
        (origin_config({"start": "vl-bert.model", "start_model": "/cache/vl-bert.model"}), ["vl-bert.model"]),
        (origin_config({"start": "s5/det", "start_model": f"/{STEP}"}), [f"/{STEP} (step 60 of the run /s5/det)"]),
        (origin_config({}), ["not recorded"]),
        (origin_config({"start": "none"}), ["new weights; whether a text model's are among them is not recorded"]),
        (origin_config({}, {"start": {"weights": "toy", "resnet": None}}), ["toy, roibeam's own detector"]),
        (origin_config({}, {"start": {"weights": STEP}}), [f"{STEP} (step 60 of the run s5/det)"]),
        (
            origin_config({}, {"start": {"weights": None, "resnet": "r101.pkl"}}),
            ["the ResNet of r101.pkl; the other layers are new"],
        ),
        (origin_config({}, {"start": {"weights": None, "resnet": None}}), ["new weights"]),
        (
            origin_config({**NEW, "encoder_weights": "random:3"}, JOINT),
            ["new weights", "new weights (random:3), a ResNet-101"],
        ),
        (
            origin_config({**NEW, "encoder_weights": f"{STEP}/model.safetensors"}, JOINT),
            ["new weights", f"{STEP}/model.safetensors (step 60 of the run s5/det), a ResNet-101"],
        ),
        (origin_config(NEW, JOINT), ["new weights", "not recorded"]),
    ],
)
def test_what_a_run_started_from_is_what_its_configuration_says(config: dict[str, Any], started: list[str]) -> None:
    """Of every kind of run, also of one whose folder is older than what is recorded now."""
    assert list(origins(config).values()) == started
