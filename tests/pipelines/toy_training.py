"""A task of milliseconds for tests of the one loop, and what two runs of it are compared by."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import load_file

from roibeam.model.common.losses import SumCount, cross_entropy
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.run_folder.files import SUMS_NAME
from roibeam.pipelines.training.train_config import TrainConfig


@dataclass
class Batch:
    """Rows of a toy classification; some rows have no label."""

    inputs: torch.Tensor
    labels: torch.Tensor
    names: list[str]

    def to(self, device):
        return Batch(self.inputs.to(device), self.labels.to(device), self.names)


class BareToyTask:
    """Two linear layers with dropout between, on rows that follow from their number."""

    num_samples = 10

    def __init__(self, *, batch_size=4, poisoned=None, label_every=1, scores=None):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3))
        self.batch_size, self._poisoned, self._label_every = batch_size, poisoned, label_every
        self._scores = None if scores is None else iter(scores)

    def batches(self, start_sample, *, rank, num_ranks):
        first = start_sample + rank * self.batch_size
        while True:
            yield self._batch(range(first, first + self.batch_size))
            first += self.batch_size * num_ranks

    def _batch(self, numbers):
        rows = np.stack([np.random.default_rng(number).standard_normal(6) for number in numbers])
        labels = [number % 3 if number % self._label_every == 0 else IGNORE_INDEX for number in numbers]
        inputs = torch.from_numpy(rows).float()
        for number, value in (self._poisoned or {}).items():
            if number in numbers:
                inputs[list(numbers).index(number)] = value
        return Batch(inputs, torch.tensor(labels), [f"sample-{number}" for number in numbers])

    def counts(self, batch):
        return {"toy": int((batch.labels != IGNORE_INDEX).sum())}

    def losses(self, model, batch):
        term = cross_entropy(model(batch.inputs), batch.labels)
        return SimpleNamespace(losses={"toy": term}, metrics={"rows": SumCount(term.count, term.count)})

    def parameter_groups(self):
        return [
            {"params": list(self.model[0].parameters()), "learning_rate_scale": 0.5},
            {"params": list(self.model[2].parameters()), "weight_decay": 0.0},
        ]

    def sample_ids(self, batch):
        return batch.names

    def model_config(self):
        return {"kind": "toy"}


class ToyTask(BareToyTask):
    """With all that a task may offer."""

    def one_by_one(self, batch):
        for row, name in enumerate(batch.names):
            yield Batch(batch.inputs[row : row + 1], batch.labels[row : row + 1], [name])

    def evaluate(self):
        """The next of `scores`; else numbers of the weights, which dropout makes random."""
        weights = torch.cat([weight.detach().flatten() for weight in self.model.parameters()])
        score = float(weights.sum()) if self._scores is None else next(self._scores)
        return {"score": score, "drawn": float(self.model(self.model[0].weight.new_ones(1, 6)).detach().sum())}


def config(**changes):
    defaults = {"steps": 12, "learning_rate": 1e-2, "warmup_steps": 1, "checkpoint_every": 4, "keep": 0}
    return TrainConfig(**(defaults | {"device": "cpu"} | changes))


def run(folder, task=None, settings=None, **options):
    return train(task or ToyTask(), settings or config(), folder, description={"kind": "toy"}, **options)


def files_of(checkpoint):
    """Every tensor and JSON value of a checkpoint: weights, optimizer, average, random states, position."""
    content = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix == ".safetensors":
            content |= {f"{path.name}:{key}": value for key, value in load_file(path).items()}
        elif path.is_file() and path.name != SUMS_NAME:
            content[path.name] = json.loads(path.read_text())
    return content


def assert_equal_checkpoints(left, right, *, but=None):
    """Bit for bit; the file `but` is not compared."""
    ours, theirs = files_of(left), files_of(right)
    if but is not None:
        del ours[but], theirs[but]
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
        assert same, name


def log_of(folder, name="log.jsonl"):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
