"""The one loop: resume to the bit, global denominators, atomic checkpoints, and what it refuses."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.inputs import IGNORE_INDEX
from model.losses import SumCount, cross_entropy
from pipelines.checkpoint import latest_checkpoint
from pipelines.optimizer import build_optimizer, learning_rate_at
from pipelines.train_config import TrainConfig
from pipelines.training import train

GOLDENS = Path(__file__).resolve().parents[3] / "shared" / "goldens" / "vlbert"


@pytest.fixture(autouse=True)
def one_thread():
    """Threads waiting for a core that others use make these small tests many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Batch:
    """Rows of a toy classification; some rows have no label."""

    def __init__(self, inputs, labels, names):
        self.inputs, self.labels, self.names = inputs, labels, names

    def to(self, device):
        return Batch(self.inputs.to(device), self.labels.to(device), self.names)


class Output:
    def __init__(self, losses, metrics):
        self.losses, self.metrics = losses, metrics


class ToyTask:
    """Two linear layers with dropout between, on rows that follow from their number."""

    num_samples = 10

    def __init__(self, *, batch_size=4, poisoned=None, label_every=1):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3))
        self.batch_size, self._poisoned, self._label_every = batch_size, poisoned, label_every

    def batches(self, start_sample, *, rank, num_ranks):
        first = start_sample + rank * self.batch_size
        while True:
            yield self._batch(range(first, first + self.batch_size))
            first += self.batch_size * num_ranks

    def _batch(self, numbers):
        rows = np.stack([np.random.default_rng(number).standard_normal(6) for number in numbers])
        labels = [number % 3 if number % self._label_every == 0 else IGNORE_INDEX for number in numbers]
        inputs = torch.from_numpy(rows).float()
        if self._poisoned in numbers:
            inputs[list(numbers).index(self._poisoned)] = math.nan
        return Batch(inputs, torch.tensor(labels), [f"sample-{number}" for number in numbers])

    def counts(self, batch):
        return {"toy": int((batch.labels != IGNORE_INDEX).sum())}

    def losses(self, model, batch):
        term = cross_entropy(model(batch.inputs), batch.labels)
        return Output({"toy": term}, {"rows": SumCount(term.count, term.count)})

    def parameter_groups(self):
        return [
            {"params": list(self.model[0].parameters()), "learning_rate_scale": 0.5},
            {"params": list(self.model[2].parameters()), "weight_decay": 0.0},
        ]

    def sample_ids(self, batch):
        return batch.names

    def model_config(self):
        return {"kind": "toy"}


def config(**changes):
    defaults = {"steps": 12, "learning_rate": 1e-2, "warmup_steps": 1, "checkpoint_every": 4, "keep": 0}
    return TrainConfig(**(defaults | {"device": "cpu", "log_every": 5} | changes))


def run(folder, task=None, settings=None, **options):
    return train(task or ToyTask(), settings or config(), folder, description={"kind": "toy"}, **options)


def files_of(checkpoint):
    """Every tensor and JSON value of a checkpoint."""
    content = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix == ".safetensors":
            content |= {f"{path.name}:{key}": value for key, value in load_file(path).items()}
        elif path.is_file():
            content[path.name] = json.loads(path.read_text())
    return content


def assert_equal_checkpoints(left, right):
    ours, theirs = files_of(left), files_of(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
        assert same, name


def log_of(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_a_run_folder_says_everything(tmp_path):
    result = run(tmp_path / "run", recorded={"host": "here"})
    assert result.step == 12 and result.checkpoint.name == "step-00000012"
    resolved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert resolved["train"]["steps"] == 12 and resolved["task"] == {"kind": "toy"}
    assert json.loads((result.checkpoint / "config.json").read_text()) == resolved
    assert sorted(path.name for path in result.checkpoint.rglob("*") if path.is_file()) == [
        "config.json", "config.json", "model.safetensors", "optimizer.safetensors", "rng-0.safetensors", "state.json",
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


def test_sgd_resumes_in_the_same_bits(tmp_path):
    whole = run(tmp_path / "whole", settings=sgd())
    run(tmp_path / "parts", settings=sgd(), stop_at_step=5)
    parts = run(tmp_path / "parts", settings=sgd(), resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    assert any(name.endswith("/momentum_buffer") for name in files_of(whole.checkpoint))


@pytest.mark.parametrize(
    "optimizer, fields",
    [
        ("bert-adam", {"exp_avg", "exp_avg_sq"}),
        ("adamw-transformers", {"exp_avg", "exp_avg_sq", "step"}),
        ("adamw-transformers-uncorrected", {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_optimizers_of_releases_resume_in_the_same_bits(tmp_path, optimizer, fields):
    settings = config(optimizer=optimizer, clip_scope="each", clip_norm=0.01, starts_at_zero=True, weight_decay=0.1)
    whole = run(tmp_path / "whole", settings=settings)
    run(tmp_path / "parts", settings=settings, stop_at_step=5)
    torch.manual_seed(1234)
    parts = run(tmp_path / "parts", settings=settings, resume=True)
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)
    saved = {name.rpartition("/")[2] for name in files_of(whole.checkpoint) if name.startswith("optimizer.")}
    assert saved == fields
    with pytest.raises(ValueError, match=r"train.clip_scope: 'each' -> 'all'"):
        run(tmp_path / "parts", settings=dataclasses.replace(settings, clip_scope="all"), resume=True)


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


def test_a_named_rule_takes_the_place_of_the_task_s_groups(tmp_path):
    """The toy task halves the rate of its first layer; VL-BERT's rule has one rate."""
    task, fresh = ToyTask(), ToyTask()
    settings = config(parameter_groups="vl-bert", weight_decay=0.0, learning_rate=0.1)
    run(tmp_path / "run", task, settings, stop_at_step=1)
    for index in (0, 2):
        moved = (task.model[index].weight - fresh.model[index].weight).abs().max().item()
        assert moved == pytest.approx(0.1, rel=1e-2)
    with pytest.raises(
        ValueError, match=r"'vilbert-release' is not for a Sequential: parameter '0\.weight' has no name"
    ):
        run(tmp_path / "other", settings=config(parameter_groups="vilbert-release"))


def test_sgd_is_torchs_with_the_groups_rates_and_decays():
    task = ToyTask()
    optimizer = build_optimizer(task.parameter_groups(), sgd(weight_decay=0.3, momentum=0.7))
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
    with pytest.raises(ValueError, match="belongs to another configuration"):
        run(tmp_path / "bent", settings=sgd(steps=12, learning_rate=0.2), resume=True)


def test_after_a_crash_the_log_holds_each_step_once(tmp_path):
    whole = run(tmp_path / "whole")
    # The crash comes at step 7 (sample 25): steps 5 and 6 are logged, the last checkpoint is step 4.
    with pytest.raises(ValueError, match="step 7"):
        run(tmp_path / "run", ToyTask(poisoned=25))
    log = tmp_path / "run" / "log.jsonl"
    assert [line["step"] for line in log_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    log.write_bytes(log.read_bytes() + b'{"step": 7, "lo')
    parts = run(tmp_path / "run", resume=True)
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
    assert_equal_checkpoints(whole.checkpoint, parts.checkpoint)


def test_a_loss_that_is_not_finite_names_the_samples_and_touches_nothing(tmp_path):
    task = ToyTask(poisoned=9)
    with pytest.raises(ValueError, match=r"step 3: loss nan.*samples: sample-8, sample-9, sample-10, sample-11;"):
        run(tmp_path / "run", task)
    assert all(parameter.isfinite().all() for parameter in task.model.parameters())


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adam"}, "optimizer must be adamw or sgd or bert-adam"),
        ({"schedule": "cosine", "decay_steps": ()}, "schedule must be linear or steps"),
        ({"schedule": "linear", "decay_steps": (6,)}, "belong to the schedule steps"),
        ({"decay_steps": (8, 6)}, "ascending"),
        ({"decay_steps": (1,), "warmup_steps": 2}, "from warmup_steps 2 on"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"decay_factor": 0.0}, "decay_factor must be above 0"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        sgd(**change)


def test_the_rate_rises_then_falls_in_steps():
    settings = sgd(steps=10, warmup_steps=4, decay_steps=(6, 8), decay_factor=0.5, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(1, 11)]
    assert rates == [0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]


def test_schedule_is_the_release_triangle():
    settings = TrainConfig(steps=20, warmup_steps=5, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(1, 21)]
    assert rates[0] == pytest.approx(0.2) and rates[4] == 1.0 and rates[-1] == 0.0
    path = GOLDENS / "optim_and_losses.npz"
    if not path.exists():
        pytest.skip(f"no reference schedule at {path}")
    with np.load(path) as golden:
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
    run(folder, settings=config(keep=2))
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-00000008", "step-00000012"]
    (folder / "checkpoints" / ".writing-step-00000099").mkdir()
    assert latest_checkpoint(folder).name == "step-00000012"


def test_refuses_to_overwrite_a_run(tmp_path):
    run(tmp_path / "run", settings=config(steps=1))
    with pytest.raises(ValueError, match="already holds a run; resume it, or choose another folder"):
        run(tmp_path / "run", settings=config(steps=1))


def test_resume_refuses_another_configuration(tmp_path):
    run(tmp_path / "run", stop_at_step=4)
    with pytest.raises(ValueError, match=r"train.learning_rate: 0.01 -> 0.5"):
        run(tmp_path / "run", settings=config(learning_rate=0.5), resume=True)
    with pytest.raises(ValueError, match=r"task.kind: 'toy' -> 'other'"):
        train(ToyTask(), config(), tmp_path / "run", description={"kind": "other"}, resume=True)
    run(tmp_path / "run", settings=config(log_every=1, keep=1), resume=True)  # changes nothing that is learned


def test_a_longer_run_goes_on_with_a_warning(tmp_path, caplog):
    run(tmp_path / "run")
    result = run(tmp_path / "run", settings=config(steps=15), resume=True)
    assert result.step == 15 and "train.steps: 12 -> 15" in caplog.text
    assert [line["step"] for line in log_of(tmp_path / "run")] == list(range(1, 16))


def test_resuming_a_finished_run_does_nothing(tmp_path):
    first = run(tmp_path / "run")
    again = run(tmp_path / "run", resume=True)
    assert again.step == 12 and again.checkpoint == first.checkpoint and again.last["step"] == 12


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"warmup_steps": 99}, "warmup_steps 99 is more than all 12 steps"),
        ({"precision": "fp8"}, "precision must be fp32 or bf16 or fp16, got 'fp8'"),
        ({"keep": -1}, "keep must not be negative"),
    ],
)
def test_config_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_bf16_trains_and_keeps_fp32_weights(tmp_path):
    task = ToyTask()
    run(tmp_path / "run", task, config(precision="bf16", steps=3))
    assert all(parameter.dtype == torch.float32 for parameter in task.model.parameters())
    assert all(math.isfinite(line["loss"]) for line in log_of(tmp_path / "run"))
