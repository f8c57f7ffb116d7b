"""The one loop: resume to the bit, global denominators, atomic checkpoints, and what it refuses."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_pretraining import Training, make_task, settings
from toy_training import BareToyTask, ToyTask, assert_equal_checkpoints, config, files_of, log_of, run

from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.optimizer import build_optimizer, learning_rate_at
from roibeam.pipelines.training.run_folder.files import latest_checkpoint
from roibeam.pipelines.training.train_config import TrainConfig

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vlbert"


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_folder_says_everything(tmp_path):
    result = run(tmp_path / "run", recorded={"host": "here"})
    assert result.step == 12 and result.checkpoint.name == "step-00000012"
    resolved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert resolved["train"]["steps"] == 12 and resolved["task"] == {"kind": "toy"}
    assert json.loads((result.checkpoint / "config.json").read_text()) == resolved
    assert sorted(path.name for path in result.checkpoint.rglob("*") if path.is_file()) == [
        "SHA256SUMS", "config.json", "config.json", "model.safetensors", "optimizer.safetensors",
        "rng-0.safetensors", "state.json",
    ]  # fmt: skip
    log = log_of(tmp_path / "run")
    assert [line["step"] for line in log] == list(range(1, 13))
    assert log[-1]["samples"] == 48 and log[-1]["epoch"] == 4.8
    assert all(line["toy"] == line["loss"] and line["rows"] == 1.0 for line in log)


@pytest.mark.parametrize("stops", [[5], [4, 9], [1, 2, 3]])
def test_resumed_runs_end_in_the_same_bits(tmp_path, stops):
    settings = config(accumulation=2)
    whole = run(tmp_path / "whole", settings=settings)
    for stop in stops:
        run(tmp_path / "parts", settings=settings, resume=True, stop_at_step=stop)
        torch.manual_seed(1234)  # a new process has another random state
    parts = run(tmp_path / "parts", settings=settings, resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "parts")


def sgd(**changes):
    """A rate that falls after step 6."""
    steps = {"optimizer": "sgd", "schedule": "steps", "decay_steps": (6,), "learning_rate": 0.1, "warmup_steps": 2}
    return config(**(steps | changes))


def release(optimizer):
    return config(optimizer=optimizer, clip_scope="each", clip_norm=0.01, starts_at_zero=True, weight_decay=0.1)


@pytest.mark.parametrize(
    "settings, fields",
    [
        (sgd(), {"momentum_buffer"}),
        (release("bert-adam"), {"exp_avg", "exp_avg_sq"}),
        (release("adamw-transformers"), {"exp_avg", "exp_avg_sq", "step"}),
        (release("adamw-transformers-uncorrected"), {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_every_optimizer_resumes_in_the_same_bits(tmp_path, settings, fields):
    whole = run(tmp_path / "whole", settings=settings)
    run(tmp_path / "parts", settings=settings, stop_at_step=5)
    torch.manual_seed(1234)
    parts = run(tmp_path / "parts", settings=settings, resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    saved = {name.rpartition("/")[2] for name in files_of(whole.checkpoint) if name.startswith("optimizer.")}
    assert saved == fields


def test_clipping_each_tensor_is_not_clipping_all_together(tmp_path):
    """SGD without momentum moves a tensor by rate * its clipped gradient; the norm that is logged is the one before."""
    moved = {}
    for scope in ("each", "all"):
        settings = sgd(clip_scope=scope, clip_norm=1e-3, momentum=0.0, weight_decay=0.0, warmup_steps=0)
        task, fresh = ToyTask(), ToyTask()
        run(tmp_path / scope, task, settings, stop_at_step=1)
        pairs = zip(task.model.parameters(), fresh.model.parameters(), strict=True)
        moved[scope] = [(after - before).norm().item() for after, before in pairs]
        assert log_of(tmp_path / scope)[0]["gradient_norm"] > 0.1
    rates = [0.05, 0.05, 0.1, 0.1]  # of the two groups
    assert moved["each"] == pytest.approx([rate * 1e-3 for rate in rates], rel=1e-2)
    assert math.hypot(*(m / rate for m, rate in zip(moved["all"], rates, strict=True))) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("scope", ["all", "each"])
def test_a_parameter_in_no_group_is_as_if_it_were_frozen(tmp_path, scope):
    """Though a loss reads it (UCLA's pooler): its gradients do not pile up, nor count in the norm."""
    logs, ends = [], []
    for frozen in (False, True):
        task = ToyTask()
        task.model[0].requires_grad_(not frozen)
        task.parameter_groups = lambda task=task: [{"params": list(task.model[2].parameters())}]
        folder = tmp_path / str(frozen)
        run(folder, task, config(clip_scope=scope, clip_norm=0.05), stop_at_step=4)
        logs.append(log_of(folder))
        ends.append(load_file(latest_checkpoint(folder) / "model" / "model.safetensors"))
        assert task.model[0].weight.grad is None
    assert logs[0] == logs[1] and logs[0][-1]["gradient_norm"] > 0.05
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_named_rule_takes_the_place_of_the_task_s_groups(tmp_path):
    """The toy task halves the rate of its first layer; VL-BERT's rule has one rate."""
    task, fresh = ToyTask(), ToyTask()
    run(tmp_path / "run", task, config(parameter_groups="vl-bert", weight_decay=0.0, learning_rate=0.1), stop_at_step=1)
    for index in (0, 2):
        moved = (task.model[index].weight - fresh.model[index].weight).abs().max().item()
        assert moved == pytest.approx(0.1, rel=1e-2)
    words = r"'vilbert-release' is not for a Sequential: parameter '0\.weight' has no name"
    with pytest.raises(ValueError, match=words):
        run(tmp_path / "other", settings=config(parameter_groups="vilbert-release"))


def test_sgd_is_torchs_with_the_groups_rates_and_decays():
    task = ToyTask()
    settings = sgd(weight_decay=0.3, momentum=0.7)
    optimizer = build_optimizer(task.parameter_groups(), settings, device=torch.device("cpu"))
    assert isinstance(optimizer, torch.optim.SGD)
    found = [(group["weight_decay"], group["momentum"]) for group in optimizer.param_groups]
    assert found == [(0.3, 0.7), (0.0, 0.7)]
    assert [group["learning_rate_scale"] for group in optimizer.param_groups] == [0.5, 1.0]


def test_another_schedule_may_be_chosen_on_the_way(tmp_path, caplog):
    """A run that bends before the first fall of either schedule is the run of the second one."""
    run(tmp_path / "bent", settings=sgd(), stop_at_step=4)
    bent = run(tmp_path / "bent", settings=sgd(steps=10, decay_steps=(5, 8)), resume=True)
    assert "another schedule" in caplog.text and "decay_steps: [6] -> [5, 8]" in caplog.text
    straight = run(tmp_path / "straight", settings=sgd(steps=10, decay_steps=(5, 8)))
    assert_equal_checkpoints(straight.checkpoint, bent.checkpoint)
    longer = sgd(steps=12, decay_steps=(5, 8), warmup_steps=1)  # fine-tuning's follows from the number of steps
    run(tmp_path / "bent", settings=longer, resume=True)
    assert "train.warmup_steps: 2 -> 1" in caplog.text
    with pytest.raises(ValueError, match="belongs to another configuration"):
        run(tmp_path / "bent", settings=sgd(steps=12, learning_rate=0.2), resume=True)


def test_after_a_crash_the_log_holds_each_step_once(tmp_path):
    whole = run(tmp_path / "whole")
    # The crash comes at step 7 (sample 25): steps 5 and 6 are logged, the last checkpoint is step 4.
    with pytest.raises(ValueError, match="step 7"):
        run(tmp_path / "run", ToyTask(poisoned={25: math.nan}))
    log = tmp_path / "run" / "log.jsonl"
    assert [line["step"] for line in log_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    log.write_bytes(log.read_bytes() + b'{"step": 7, "lo')
    parts = run(tmp_path / "run", resume=True)
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)


def test_a_loss_that_is_not_finite_names_its_samples_and_touches_nothing(tmp_path):
    """Where no sample is to blame all are named: the squares of finite gradients may be infinite, and a task need not
    split its batches."""
    for poisoned, named in (({9: math.nan}, "sample-9"), ({8: math.inf, 11: math.nan}, "sample-8, sample-11")):
        task, folder = ToyTask(poisoned=poisoned), tmp_path / named
        said = rf"not finite by itself: {named} \(of 4 samples in the step\); see what is stored"
        with pytest.raises(ValueError, match=rf"step 3: loss nan.*are not finite; {said}"):
            run(folder, task)
        assert all(parameter.isfinite().all() for parameter in task.model.parameters())
        assert [line["step"] for line in log_of(folder)] == [1, 2]
    with pytest.raises(ValueError, match=r"samples: sample-0, .*sample-3, each of them finite alone; look at"):
        run(tmp_path / "a", ToyTask(poisoned=dict.fromkeys(range(4), 1e25)))
    with pytest.raises(ValueError, match=r"samples: sample-0, sample-1, sample-2, sample-3; look at their features"):
        run(tmp_path / "b", BareToyTask(poisoned={1: math.nan}))


def test_weights_that_are_not_finite_are_blamed_before_samples(tmp_path):
    task = ToyTask()
    task.model[2].bias.data[1] = math.inf
    words = r"the weights were not finite before it \(2\.bias, 1 in all\); look at what the run starts from"
    with pytest.raises(ValueError, match=words):
        run(tmp_path / "run", task)


@pytest.mark.parametrize(("every", "start"), [(1, "; .*step-00000001 is the newest checkpoint"), (0, "$")])
def test_a_rate_that_spoils_the_weights_does_not_blame_the_samples(tmp_path, every, start):
    """Every sample of the step is not finite then, and step 2's checkpoint holds the weights that make it so."""
    settings = config(optimizer="sgd", learning_rate=1e19, warmup_steps=0, checkpoint_every=every)
    words = r"none of its 4 samples is finite by itself: the weights are spoiled, not the data; .* rate of 1e\+19 is"
    with pytest.raises(ValueError, match=f"step 3: .*{words} too high.*more warm-up{start}"):
        run(tmp_path / "run", settings=settings)


@pytest.mark.parametrize("label_every", [1, 3])
def test_accumulation_is_one_mean_over_all_labels(tmp_path, label_every):
    """Four micro-batches of 2 and one of 8 give the same step, however unevenly the labels fall."""
    results = []
    for batch_size, accumulation in [(8, 1), (2, 4)]:
        task = ToyTask(batch_size=batch_size, label_every=label_every)
        task.model[1].p = 0.0
        folder = tmp_path / f"{batch_size}"
        run(folder, task, config(accumulation=accumulation, steps=3))
        results.append((log_of(folder), [p.detach().clone() for p in task.model.parameters()]))
    (one_log, one), (many_log, many) = results
    for left, right in zip(one_log, many_log, strict=True):
        assert left["toy"] == pytest.approx(right["toy"], rel=1e-5)
        assert left["gradient_norm"] == pytest.approx(right["gradient_norm"], rel=1e-4)
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_a_step_without_any_label_is_logged_as_null(tmp_path):
    run(tmp_path / "run", ToyTask(label_every=1000, batch_size=2), config(steps=2))
    log = log_of(tmp_path / "run")
    assert log[1]["toy"] is None and log[1]["loss"] == 0 and log[1]["gradient_norm"] == 0


STEPS = {"schedule": "steps", "decay_steps": (6,)}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"warmup_steps": 99}, "warmup_steps 99 is more than all 12 steps"),
        ({"precision": "fp8"}, "precision must be fp32 or bf16 or fp16, got 'fp8'"),
        ({"keep": -1}, "keep must not be negative"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"schedule": "cosin"}, "schedule must be linear or cosine or constant or steps or plateau, got"),
        ({**STEPS, "schedule": "cosine"}, r"decay_steps \(6,\) belong to the schedule steps, not cosine"),
        ({**STEPS, "schedule": "linear"}, "belong to the schedule steps"),
        ({**STEPS, "decay_steps": (8, 6)}, "ascending"),
        ({**STEPS, "decay_steps": (1,), "warmup_steps": 2}, "from warmup_steps 2 on"),
        ({**STEPS, "decay_factor": 0.0}, "decay_factor must be above 0"),
        ({"schedule": "plateau"}, "the schedule plateau goes by evaluations"),
        ({"updates_per_schedule_step": 0}, "updates_per_schedule_step must be at least 1"),
        ({"warmup_overwritten_every": 2}, "warmup_overwritten_every belongs to the schedule steps, not linear"),
        ({"warmup_overwritten_every": -1}, "warmup_overwritten_every must not be negative"),
        ({"loss_mean": "batch"}, "loss_mean must be step or micro_batch, got 'batch'"),
        ({"step_gradients": "first"}, "step_gradients must be all or last"),
        ({"optimizer": "bertadam"}, "optimizer must be adamw or sgd or bert-adam or adamw-transformers"),
        ({"clip_scope": "every"}, "clip_scope must be all or each, got 'every'"),
        ({"clip_scope": "each", "clip_norm": 0.0}, "clip_scope each needs a clip_norm above 0"),
        ({"parameter_groups": "vilbert"}, "parameter_groups must be task or vl-bert or vilbert-release"),
        ({"average_rate": 1.0}, "average_rate must be from 0 to below 1, got 1.0"),
        ({"average_start": "zero"}, "average_start must be first_update or initial, got 'zero'"),
        ({"best_by": "score"}, "best_by 'score' needs evaluations; set evaluate_every"),
        ({"best_is": "larger"}, "best_is must be auto or highest or lowest, got 'larger'"),
        ({"evaluate_every": -1}, "evaluate_every must not be negative"),
    ],
)
def test_settings_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{"steps": 12, **fields})


def test_the_rate_rises_then_falls_in_steps_or_as_the_release_s_triangle():
    settings = sgd(steps=10, warmup_steps=4, decay_steps=(6, 8), decay_factor=0.5, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(1, 11)]
    assert rates == [0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    settings = TrainConfig(steps=20, warmup_steps=5, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(1, 21)]
    assert rates[0] == pytest.approx(0.2) and rates[4] == 1.0 and rates[-1] == 0.0
    with np.load(GOLDENS / "optim_and_losses.npz") as golden:
        np.testing.assert_allclose(rates, golden["out/triangle_schedule_lr_after_k_scheduler_steps"][1:], atol=1e-6)


def test_groups_have_their_own_rate_and_decay(tmp_path):
    task, fresh = ToyTask(), ToyTask()
    run(tmp_path / "run", task, config(weight_decay=0.5, learning_rate=0.1), stop_at_step=1)
    # AdamW's first step decays by rate * decay, then moves each number with a gradient by the rate.
    for index, rate, decay in [(0, 0.05, 0.5), (2, 0.1, 0.0)]:
        before, after = fresh.model[index].weight.detach(), task.model[index].weight.detach()
        moved = (after - before * (1 - rate * decay)).abs().max().item()
        assert moved == pytest.approx(rate, rel=1e-2)


def test_old_checkpoints_go_and_leftovers_do_not_count(tmp_path):
    folder = tmp_path / "run"
    run(folder, settings=config(keep=2), stop_at_step=8)
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008"]
    for name in (".writing-step-00000099", ".removing-step-00000004", ".replaced-step-00000003"):  # 4 goes again
        (folder / "checkpoints" / name / "model").mkdir(parents=True)
    assert latest_checkpoint(folder).name == "step-00000008"
    run(folder, settings=config(keep=1), resume=True)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000012"]


def test_resume_refuses_another_configuration(tmp_path):
    run(tmp_path / "run", stop_at_step=4)
    for changed, words in (
        ({"learning_rate": 0.5}, "train.learning_rate: 0.01 -> 0.5"),
        ({"clip_scope": "each"}, "train.clip_scope: 'all' -> 'each'"),
    ):
        with pytest.raises(ValueError, match=words):
            run(tmp_path / "run", settings=config(**changed), resume=True)
    with pytest.raises(ValueError, match=r"task.kind: 'toy' -> 'other'"):
        train(ToyTask(), config(), tmp_path / "run", description={"kind": "other"}, resume=True)
    with pytest.raises(ValueError, match=r"0.5\); start .*; pretrain --from-run .*/step-00000004 begins it with these"):
        run(tmp_path / "run", settings=config(learning_rate=0.5, steps=14), resume=True)  # more steps are not refused
    many = {f"of{place}": "x" * 999 + str(place) for place in range(20)}
    with pytest.raises(ValueError, match=r"\.\.\. x{43}1'; .*; and 15 more\); start") as refused:
        train(ToyTask(), config(), tmp_path / "run", description=many, resume=True)
    assert len(str(refused.value)) < 1000
    run(tmp_path / "run", settings=config(keep=1), resume=True)  # changes nothing that is learned


def test_digests_that_differ_are_named_in_short(tmp_path):
    train(ToyTask(), config(), tmp_path / "run", description={"captions": "0123456789ab" * 5}, stop_at_step=4)
    words = r"\(task.captions: '0123456789ab' -> 'ffffffffffff'\); start a new run folder$"
    with pytest.raises(ValueError, match=words):
        train(ToyTask(), config(), tmp_path / "run", description={"captions": "f" * 64}, resume=True)


def test_a_setting_that_did_not_exist_yet_had_its_default(tmp_path):
    def go(described, new=0, **options):
        defaults = {"rules": {"old": 0, "new": new}, "others": {"x": 1}}
        description = {"rules": described}
        train(ToyTask(), config(), tmp_path / "run", description=description, defaults=defaults, **options)

    go({"old": 1}, stop_at_step=4)
    go({"old": 1, "new": 2}, new=2, resume=True, stop_at_step=4)
    go({"old": 1}, new=2, resume=True, stop_at_step=4)  # some settings are not described
    with pytest.raises(ValueError, match=r"task.rules.new: 2 -> 3"):
        go({"old": 1, "new": 3}, new=2, resume=True)


def test_a_longer_run_goes_on_with_a_warning_and_one_goes_back_to_an_earlier_checkpoint(tmp_path, caplog):
    run(tmp_path / "run")
    result = run(tmp_path / "run", settings=config(steps=15), resume=True)
    assert result.step == 15 and "train.steps: 12 -> 15" in caplog.text
    assert [line["step"] for line in log_of(tmp_path / "run")] == list(range(1, 16))
    assert run(tmp_path / "run", settings=config(steps=4), resume="step-4").step == 4  # which is something to do
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 4


@pytest.mark.parametrize("changes", [{}, {"steps": 6}, {"steps": 6, "accumulation": 2, "keep": 1}])
def test_resuming_a_finished_run_does_nothing(tmp_path, caplog, changes):
    """Its configuration is that of its steps: it was overwritten with one of fewer, and a bend of the rate was told."""
    first = run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != "report.html"}
    caplog.clear()
    again = run(tmp_path / "run", settings=config(**changes), resume=True)
    assert again.step == 12 and again.checkpoint == first.checkpoint and again.last["step"] == 12
    assert again.done() == "all 12 steps are there already; nothing to do"
    assert not {path.name for path, time in before.items() if path.stat().st_mtime_ns != time} - {"run", "curves.svg"}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert "12 steps of" not in caplog.text


def test_what_model_or_machine_do_not_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_, **__: False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    layers = "Sequential has no layers that compute their activations again; leave it at false"
    for fields, words in (
        ({"activation_checkpointing": True}, f"^activation_checkpointing: {layers}$"),
        ({"precision": "fp16"}, "precision fp16 needs an accelerator, device is cpu; choose bf16 or fp32"),
        ({"precision": "fp16", "device": "auto"}, "precision fp16 needs an accelerator, and this machine has none"),
        ({"tensorboard": True}, r"needs TensorBoard: pip install 'roibeam\[tensorboard\]'"),
    ):
        with pytest.raises(ValueError, match=words):
            run(tmp_path / "run", settings=config(**fields))
        assert not (tmp_path / "run").exists() or "tensorboard" in fields


def test_bf16_trains_and_keeps_fp32_weights(tmp_path):
    task = ToyTask()
    run(tmp_path / "run", task, config(precision="bf16", steps=3))
    assert all(parameter.dtype == torch.float32 for parameter in task.model.parameters())
    assert all(math.isfinite(line["loss"]) for line in log_of(tmp_path / "run"))


def test_the_same_call_again_goes_on_where_the_folder_holds_the_same_run(tmp_path, caplog):
    whole = run(tmp_path / "whole")
    with pytest.raises(ValueError, match="step 7"):
        run(tmp_path / "run", ToyTask(poisoned={25: math.nan}), resume="auto")
    assert "no checkpoint yet" not in caplog.text
    parts = run(tmp_path / "run", resume="auto")
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert run(tmp_path / "run", resume="auto").step == 12
    with pytest.raises(ValueError, match=r"train.learning_rate: 0.01 -> 0.5"):
        run(tmp_path / "run", settings=config(learning_rate=0.5), resume="auto")


def test_another_run_that_has_no_checkpoint_yet_is_not_taken_over(tmp_path):
    with pytest.raises(ValueError, match="step 1"):
        run(tmp_path / "run", ToyTask(poisoned={0: math.nan}))
    with pytest.raises(ValueError, match=r"run belongs to another configuration \(train.seed: 0 -> 1\)"):
        run(tmp_path / "run", settings=config(seed=1), resume="auto")
    assert run(tmp_path / "run", resume="auto").step == 12


def test_a_warm_up_that_was_whole_steps_goes_on_so(tmp_path):
    """As runs by a release's rule began before its share of the steps was taken as it is."""
    run(tmp_path / "run", settings=config(warmup_steps=4), stop_at_step=4)
    run(tmp_path / "run", settings=config(warmup_steps=3.6), resume="auto")
    run(tmp_path / "whole", settings=config(warmup_steps=4))
    rates = [[line["learning_rate"] for line in log_of(tmp_path / name)] for name in ("run", "whole")]
    assert rates[0] == rates[1]


def test_a_run_from_before_a_setting_existed_goes_on(tmp_path):
    run(tmp_path / "run", stop_at_step=4)
    (path,) = (tmp_path / "run").glob("checkpoints/*/config.json")
    saved = json.loads(path.read_text())
    del saved["train"]["average_rate"], saved["train"]["tensorboard"]
    saved["train"]["log_every"] = 20  # which there was once
    path.write_text(json.dumps(saved))
    (path.parent / "SHA256SUMS").unlink()
    assert run(tmp_path / "run", resume=True).step == 12


def test_a_run_that_began_with_a_setting_that_nothing_reads_goes_on(tmp_path):
    """The command line refuses `train.momentum` with adamw now: without it the run is the same."""
    run(tmp_path / "run", settings=config(momentum=0.5, decay_factor=0.7), stop_at_step=4)
    assert run(tmp_path / "run", resume=True).step == 12
    run(tmp_path / "sgd", settings=sgd(momentum=0.5), stop_at_step=4)
    with pytest.raises(ValueError, match=r"train.momentum: 0.5 -> 0.9"):
        run(tmp_path / "sgd", settings=sgd(), resume=True)


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "said"), [(2, 2, ""), (1, 4, ""), (2, 1, "global_batch: 4 -> 2")]
)
def test_the_same_samples_in_other_micro_batches(tmp_path, caplog, batch_size, accumulation, said):
    """Of one global batch the next is the same, however it is shared out; of another it begins where the last ended."""
    run(tmp_path / "run", stop_at_step=5)
    task = ToyTask(batch_size=batch_size)
    run(tmp_path / "run", task, config(accumulation=accumulation), resume=True, stop_at_step=7)
    steps = [line["samples"] for line in log_of(tmp_path / "run")]
    assert steps == [*range(4, 21, 4), 20 + batch_size * accumulation, 20 + 2 * batch_size * accumulation]
    assert said in caplog.text and ("not scaled" in caplog.text) == bool(said)


@pytest.mark.parametrize("objective", ["vlbert", "vlbert-texts"])
def test_with_another_batch_size_each_sample_comes_once(tmp_path, caplog, objective):
    """Captions, and the text beside them: as in one go, over the ends of epochs of ten."""
    Training(tmp_path / "run", settings(steps=3), 4, {"objective": objective})()
    Training(tmp_path / "run", settings(steps=10), 2, {"objective": objective})()
    assert "resuming with another global_batch: 4 -> 2; the learning rate is not scaled" in caplog.text
    task = make_task(objective, batch_size=1)
    stream = task.batches(0, rank=0, num_ranks=1)
    for _ in range(3 * 4 + 7 * 2):
        next(stream)
    assert sorted((tmp_path / "run.seen-0").read_text().split()) == sorted(task.seen)
    assert log_of(tmp_path / "run")[-1]["samples"] == 26


def test_tensorboard_has_the_numbers_of_the_logs(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = config(tensorboard=True, evaluate_every=4)
    with pytest.raises(ValueError, match="step 7"):
        run(tmp_path / "run", ToyTask(poisoned={25: math.nan}), settings)
    run(tmp_path / "run", settings=settings, resume=True)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for kind, name in (("train/loss", "log.jsonl"), ("evaluation/score", "evaluation.jsonl")):
        found = {event.step: event.value for event in events.Scalars(kind)}
        lines = log_of(tmp_path / "run", name)
        assert found == pytest.approx({line["step"]: line[kind.partition("/")[2]] for line in lines}, rel=1e-6)
        assert len(events.Scalars(kind)) == len(lines)  # steps that were done twice are drawn once
