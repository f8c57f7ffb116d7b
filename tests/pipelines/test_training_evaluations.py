"""The one loop: the average of the weights, evaluations, and the best checkpoint by them."""

import dataclasses
import json
import math

import pytest
import torch
from objectives import OBJECTIVES
from safetensors.torch import load_file
from toy_training import BareToyTask, ToyTask, assert_equal_checkpoints, config, log_of, run

from roibeam.pipelines.common.statistics.measure_names import less_is_better
from roibeam.pipelines.training.requests import named_step
from roibeam.pipelines.training.run_folder.files import latest_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def averaged(**changes):
    return config(**({"average_rate": 0.7, "optimizer": "sgd", "learning_rate": 0.3} | changes))


@pytest.mark.parametrize(
    ("start", "words"), [("first_update", "the first update on"), ("initial", "the initial weights on")]
)
def test_the_average_is_what_is_judged_kept_and_left_in_the_model(tmp_path, start, words):
    """Against the sum the rule unrolls to, from a run without average and a checkpoint after each step."""
    run(tmp_path / "plain", settings=averaged(average_rate=0.0, checkpoint_every=1))
    fresh, task = ToyTask(), ToyTask()
    result = run(tmp_path / "run", task, averaged(evaluate_every=6, average_start=start))
    states = [load_file(path / "model" / "model.safetensors") for path in sorted((tmp_path / "plain").glob("*/step-*"))]
    shares = [0.7**12, *(0.3 * 0.7 ** (12 - step) for step in range(1, 13))]
    if start == "first_update":
        shares = [0.0, *(share / (1 - 0.7**12) for share in shares[1:])]
    assert len(states) == 12
    kept = load_file(result.checkpoint / "model" / "model.safetensors")
    for name, start in fresh.model.state_dict().items():
        wanted = sum(share * state[name] for share, state in zip(shares, [{name: start}, *states], strict=True))
        torch.testing.assert_close(kept[name], wanted, rtol=1e-5, atol=1e-6)
        assert torch.equal(task.model.state_dict()[name], kept[name])
        assert torch.equal(load_file(result.checkpoint / "trained.safetensors")[name], states[-1][name])
    assert log_of(tmp_path / "run")[-1]["loss"] == log_of(tmp_path / "plain")[-1]["loss"]
    judged = log_of(tmp_path / "run", "evaluation.jsonl")[-1]["score"]
    assert judged == pytest.approx(sum(float(tensor.sum()) for tensor in kept.values()), rel=1e-5)
    state = json.loads((result.checkpoint / "state.json").read_text())
    assert state["model"] == f"exponential average of the weights, rate 0.7, from {words}"
    assert state["averaged_updates"] == 12


@pytest.mark.parametrize("stops", [[5], [1, 2, 9]])
def test_the_average_resumes_in_the_same_bits(tmp_path, stops):
    settings = averaged(accumulation=2, evaluate_every=4)
    whole = run(tmp_path / "whole", settings=settings)
    for stop in stops:
        run(tmp_path / "parts", settings=settings, resume=True, stop_at_step=stop)
        torch.manual_seed(1234)
    parts = run(tmp_path / "parts", settings=settings, resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert "trained.safetensors" in [path.name for path in whole.checkpoint.iterdir()]
    assert log_of(tmp_path / "whole", "evaluation.jsonl") == log_of(tmp_path / "parts", "evaluation.jsonl")


def test_an_average_from_before_there_was_a_start_goes_on_as_it_began(tmp_path, caplog):
    """By the same command, which asks for the first update now; again and again."""
    whole = run(tmp_path / "whole", settings=averaged(average_start="initial"))
    old = run(tmp_path / "old", settings=averaged(average_start="initial"), stop_at_step=5).checkpoint
    for name, section, field in (("config.json", "train", "average_start"), ("state.json", None, "averaged_updates")):
        written = json.loads((old / name).read_text())
        del (written[section] if section else written)[field]
        (old / name).write_text(json.dumps(written))
    (old / "SHA256SUMS").unlink()
    run(tmp_path / "old", settings=averaged(), resume="auto", stop_at_step=8)
    assert "its average goes on from the initial weights, as it began" in caplog.text
    result = run(tmp_path / "old", settings=averaged(), resume="auto")
    for name in ("model/model.safetensors", "trained.safetensors"):
        assert (result.checkpoint / name).read_bytes() == (whole.checkpoint / name).read_bytes()
    assert json.loads((tmp_path / "old" / "config.json").read_text())["train"]["average_start"] == "initial"
    run(tmp_path / "new", settings=averaged(), stop_at_step=5)
    with pytest.raises(ValueError, match=r"average_start: 'first_update' -> 'initial'"):
        run(tmp_path / "new", settings=averaged(average_start="initial"), resume="auto")


def test_evaluations_change_nothing_of_the_training(tmp_path):
    """The toy's evaluation draws dropout; a run with it and one without end in the same bits."""
    plain = run(tmp_path / "plain")
    judged = run(tmp_path / "judged", settings=config(evaluate_every=5))
    assert_equal_checkpoints(plain.checkpoint, judged.checkpoint, but="config.json")
    assert log_of(tmp_path / "plain") == log_of(tmp_path / "judged")
    lines = log_of(tmp_path / "judged", "evaluation.jsonl")
    assert [line["step"] for line in lines] == [0, 5, 10, 12]
    assert set(lines[0]) == {"step", "samples", "epoch", "score", "drawn"}
    assert not (tmp_path / "plain" / "evaluation.jsonl").exists()


@pytest.mark.parametrize(("best_is", "best_step"), [("highest", 4), ("lowest", 8)])
def test_the_best_checkpoint_stays_beside_the_newest(tmp_path, best_is, best_step):
    scores = [9.0, 1.0, 5.0, math.nan, -2.0, None, 5.0]  # before the first step, then every 2; NaN and None are none
    settings = config(evaluate_every=2, best_by="score", best_is=best_is, keep=2, checkpoint_every=5)
    result = run(tmp_path / "run", ToyTask(scores=scores), settings)
    assert result.best.name == f"step-{best_step:08d}"
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == sorted({result.best.name, "step-00000010", "step-00000012"})
    lines = log_of(tmp_path / "run", "evaluation.jsonl")
    assert [line["score"] for line in lines] == [9.0, 1.0, 5.0, None, -2.0, None, 5.0]


ENDS_AT_8 = [9.0, 2.0, 5.0, 4.0, 5.0, 6.0, 7.0]  # before the first step, then every 2: nothing beats step 4's


def patient(**changes):
    return config(evaluate_every=2, best_by="score", patience=2, checkpoint_every=5, **changes)


def test_a_run_without_a_better_evaluation_ends(tmp_path, caplog):
    caplog.set_level("INFO")
    result = run(tmp_path / "run", ToyTask(scores=ENDS_AT_8), patient())
    assert (result.step, result.ended_early, result.checkpoint.name) == (8, True, "step-00000008")
    assert result.best.name == "step-00000004" and result.done().endswith(", ended by train.patience")
    assert "no better score in 2 evaluations (train.patience): the run ends after step 8 of 12" in caplog.text
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Ended early." in page and "8 of 12 steps: no better score in 2 evaluations" in page
    config_before = (tmp_path / "run" / "config.json").read_bytes()
    again = run(tmp_path / "run", ToyTask(scores=[]), patient(), resume="auto")
    assert again.done() == "the run has ended after 8 steps, by train.patience; nothing to do"
    assert (tmp_path / "run" / "config.json").read_bytes() == config_before
    more = dataclasses.replace(patient(), patience=4)
    longer = run(tmp_path / "run", ToyTask(scores=[5.0, 6.0]), more, resume="auto")
    assert (longer.step, longer.ended_early) == (12, False)


@pytest.mark.parametrize("stop", [4, 7])
def test_a_run_that_was_stopped_ends_at_the_same_step(tmp_path, stop):
    whole = run(tmp_path / "whole", ToyTask(scores=ENDS_AT_8), patient())
    run(tmp_path / "parts", ToyTask(scores=ENDS_AT_8), patient(), stop_at_step=stop)
    parts = run(tmp_path / "parts", ToyTask(scores=ENDS_AT_8[1 + stop // 2 :]), patient(), resume="auto")
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "parts")


def test_a_run_that_was_killed_in_its_last_evaluation_ends_after_it(tmp_path):
    """Its checkpoint is there, and the evaluation that ends it is not."""
    settings = dataclasses.replace(patient(), checkpoint_every=4)
    task = ToyTask(scores=ENDS_AT_8[:4])
    with pytest.raises(StopIteration):
        run(tmp_path / "run", task, settings)
    assert latest_checkpoint(tmp_path / "run").name == "step-00000008"
    result = run(tmp_path / "run", ToyTask(scores=ENDS_AT_8[4:]), settings, resume="auto")
    assert (result.step, result.new_steps, result.ended_early) == (8, 0, True)


def named(task, name):
    """The task, whose evaluation calls its score so."""
    judged = task.evaluate
    task.evaluate = lambda: {name: judged()["score"]}
    return task


def test_the_best_checkpoint_has_a_name(tmp_path):
    """For `evaluate`, `convert`, `--from-run`, `--from`, `predict` and `--resume-from`, which read the newest else."""
    settings = config(evaluate_every=4, best_by="score")
    run(tmp_path / "run", ToyTask(scores=[9.0, 1.0, 5.0, 2.0]), settings)
    best = tmp_path / "run" / "checkpoints" / "best"
    assert named_step(str(best)) == str(named_step(best)) == str(best.with_name("step-00000008"))
    assert named_step(None) is None and named_step(str(tmp_path / "run")) == str(tmp_path / "run")
    assert named_step("best") == "best"
    resumed = run(tmp_path / "run", settings=dataclasses.replace(settings, steps=9), resume="best")
    assert resumed.new_steps == 1 and not best.with_name("step-00000012").exists()
    run(tmp_path / "other")
    with pytest.raises(ValueError, match=r"without train.best_by; name one of its checkpoints: step-00000004, step"):
        named_step(str(tmp_path / "other" / "checkpoints" / "best"))


@pytest.mark.parametrize(("name", "best_step"), [("masked_words", 4), ("Q->AR", 12)])
def test_what_is_best_follows_from_the_name(tmp_path, name, best_step):
    """A falling loss kept its worst checkpoint when the highest number was best whatever its name."""
    scores = [5.0, 1.0, 2.0, 3.0]
    settings = config(evaluate_every=4, best_by=name, keep=1)
    assert run(tmp_path / "run", named(ToyTask(scores=scores), name), settings).best.name == f"step-{best_step:08d}"
    against = "highest" if best_step == 4 else "lowest"
    told = run(tmp_path / "told", named(ToyTask(scores=scores), name), dataclasses.replace(settings, best_is=against))
    assert told.best.name == f"step-{16 - best_step:08d}"


def test_a_run_that_recorded_what_is_best_goes_on_with_it(tmp_path, caplog):
    """As runs of before did for losses too; what the user says now counts, and so does another number."""
    scores = iter([5.0, 3.0, 2.0, 1.0, 0.5, 4.0])

    def best_is(settings, resume="auto", **options):
        task = named(ToyTask(scores=scores), settings.best_by)
        run(tmp_path / "run", task, settings, resume=resume, **options)
        return json.loads((tmp_path / "run" / "config.json").read_text())["train"]["best_is"]

    begun = config(evaluate_every=4, best_by="matching", best_is="highest")
    best_is(begun, stop_at_step=4)
    by_name = config(evaluate_every=4, best_by="matching")
    assert best_is(by_name, stop_at_step=8) == "highest"
    assert "the highest matching stays the best, as the run began; --set train.best_is=lowest" in caplog.text
    assert best_is(dataclasses.replace(by_name, steps=16, best_is="lowest"), stop_at_step=12) == "lowest"
    assert best_is(dataclasses.replace(by_name, steps=16, best_by="matching_accuracy")) == "auto"


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_every_loss_of_pre_training_is_known_as_one(objective):
    """A loss with a name that is not known would be best when it is highest."""
    losses = OBJECTIVES[objective].losses
    assert losses and all(less_is_better(name) for name in losses)
    assert not less_is_better("masked_region_accuracy") and not less_is_better("text_to_image_r10")


def test_a_rate_stays_while_a_loss_falls(tmp_path):
    plateau = {"schedule": "plateau", "plateau_patience": 0, "plateau_cooldown": 0}
    settings = config(evaluate_every=2, best_by="masked_words", **plateau)
    run(tmp_path / "run", named(ToyTask(scores=[9.0, 5.0, 4.0, 3.0, 2.0, 1.5, 1.0]), "masked_words"), settings)
    assert {line["learning_rate"] for line in log_of(tmp_path / "run")} == {1e-2}


def test_a_best_number_that_is_not_there_is_noticed_before_the_first_step(tmp_path):
    with pytest.raises(ValueError, match="best_by 'accuracy': the evaluation has score, drawn"):
        run(tmp_path / "run", settings=config(evaluate_every=4, best_by="accuracy"))
    assert log_of(tmp_path / "run") == []
    with pytest.raises(ValueError, match="evaluate_every 4: this task offers no evaluation"):
        run(tmp_path / "other", BareToyTask(), config(evaluate_every=4))


def test_after_a_crash_each_evaluation_stands_once(tmp_path):
    settings = config(evaluate_every=3, checkpoint_every=4)
    whole = run(tmp_path / "whole", settings=settings)
    with pytest.raises(ValueError, match="step 7"):
        run(tmp_path / "run", ToyTask(poisoned={25: math.nan}), settings)
    assert [line["step"] for line in log_of(tmp_path / "run", "evaluation.jsonl")] == [0, 3, 6]
    parts = run(tmp_path / "run", settings=settings, resume=True)
    for name in ("log.jsonl", "evaluation.jsonl"):
        assert log_of(tmp_path / "run", name) == log_of(tmp_path / "whole", name)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    # Before the first checkpoint there is nothing to go on from.
    with pytest.raises(ValueError, match="step 1"):
        run(tmp_path / "early", ToyTask(poisoned={0: math.nan}), settings)
    run(tmp_path / "early", settings=settings, resume=True)
    assert log_of(tmp_path / "early", "evaluation.jsonl") == log_of(tmp_path / "whole", "evaluation.jsonl")


class BreaksDown(ToyTask):
    """Its evaluation number `at` is the end of it."""

    def __init__(self, at):
        super().__init__()
        self._left = at

    def evaluate(self):
        if not self._left:
            raise RuntimeError("out of memory")
        self._left -= 1
        return super().evaluate()


@pytest.mark.parametrize("at", [0, 1, 2, 3])  # before the first step, after steps 4, 8, 12
@pytest.mark.parametrize("best_is", ["highest", "lowest"])
def test_an_evaluation_that_breaks_down_costs_itself_alone(tmp_path, at, best_is):
    settings = config(evaluate_every=4, keep=1, best_by="score", best_is=best_is)
    whole = run(tmp_path / "whole", settings=settings)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(tmp_path / "run", BreaksDown(at), settings)
    there = sorted(path.name for path in (tmp_path / "run").glob("checkpoints/step-*"))
    assert f"step-{4 * at:08d}" in there if at else not there
    parts = run(tmp_path / "run", settings=settings, resume=True)
    for name in ("log.jsonl", "evaluation.jsonl"):
        assert log_of(tmp_path / "run", name) == log_of(tmp_path / "whole", name)
    kept = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "run")]
    assert kept[0] == kept[1]
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)


def test_what_the_last_evaluation_found_is_told(tmp_path):
    told = run(tmp_path / "run", settings=config(evaluate_every=5))
    last = log_of(tmp_path / "run", "evaluation.jsonl")[-1]
    assert told.evaluation == {name: last[name] for name in ("score", "drawn")}
    assert run(tmp_path / "plain").evaluation is None
