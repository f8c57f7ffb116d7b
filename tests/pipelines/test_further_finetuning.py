"""A model that was fine-tuned learns another task: its encoder goes on, its head where both tasks ask the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from task_groups import ASKED, batches, groups, small_network

from roibeam.pipelines.finetuning.rows import CHOICE, LABEL
from roibeam.pipelines.finetuning.run.finetune_run import digest_of_labels
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.run.task_start import FirstTask, TaskStart, without_heads
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS, system_of
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.run_folder.files import write_json
from roibeam.pipelines.training.run_folder.training_data import known_keys, trained_among, write_trained_images

LABELS = digest_of_labels("abc")
PAIR = "pair"


def write_run(run: Path, network: TaskNetwork, kind: str, labels: str, **recorded: Any) -> Path:
    """What of a run's folder the next one reads."""
    model = run / "checkpoints" / "step-00000002" / "model"
    model.mkdir(parents=True)
    save_model(network.module, str(model / "model.safetensors"), metadata={"format": "pt"})
    write_json(model / "config.json", network.described)
    task = {"kind": "finetuning", "task": "first", "form": ASKED[kind].form, "num_images": ASKED[kind].num_images}
    config = {"train": {}, "task": {**task, "labels": labels}, "recorded": recorded}
    write_json(model.parent / "config.json", config)
    return run


def trained(system: str, kind: str, head: str) -> TaskNetwork:
    """A network whose parameters are none that a start would have."""
    network = small_network(system, kind, head=head)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.module.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return network


def started(run: Path, kind: str, head: str, labels: str = LABELS) -> tuple[TaskNetwork, str]:
    """The next network, and what is told of its head."""
    found = without_heads(load_model(str(run)))
    first, system = FirstTask.of(found), system_of(found.model)
    assert first is not None
    torch.manual_seed(2)
    network = started_network(system, found.model, ASKED[kind], head, source=run)
    told = first.go_on(network, system, ASKED[kind], labels, keeps=True)
    network.module.eval()
    return network, told


def scores(network: TaskNetwork, system: str, kind: str) -> torch.Tensor:
    return network.module(batches(network, system, kind).batch(groups(kind)).inputs)


HEADS = [
    ("vlbert", CHOICE, "release"), ("vlbert", PAIR, "ours"), ("vilbert", LABEL, "release-mt"),
    ("visualbert", LABEL, "release"), ("interbert", CHOICE, "match"),
]  # fmt: skip


@pytest.mark.parametrize(("system", "kind", "head"), HEADS)
def test_what_asks_the_same_goes_on_with_the_same_scores(system: str, kind: str, head: str, tmp_path: Path) -> None:
    """Before the first step: encoder and head are those of the model that was fine-tuned."""
    first = trained(system, kind, head)
    network, told = started(write_run(tmp_path / "run", first, kind, LABELS), kind, head)
    assert told == "the model learned first before: its head goes on too"
    torch.testing.assert_close(scores(network, system, kind), scores(first, system, kind), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("system", "kind", "head", "new_kind", "new_head", "labels", "why"),
    [
        ("vlbert", LABEL, "ours", LABEL, "ours", digest_of_labels("abd"), "this task has other labels"),
        ("vlbert", LABEL, "release", LABEL, "ours", LABELS, "it is of another kind"),
        ("vilbert", LABEL, "ours", CHOICE, "release", LABELS, "this task has another form"),
        ("vlbert", LABEL, "ours", PAIR, "ours", LABELS, "this task has another form"),
    ],
)
def test_another_task_has_a_new_head_on_the_same_encoder(
    system: str, kind: str, head: str, new_kind: str, new_head: str, labels: str, why: str, tmp_path: Path
) -> None:
    first = trained(system, kind, head)
    network, told = started(write_run(tmp_path / "run", first, kind, LABELS), new_kind, new_head, labels)
    assert told == f"the model learned first before: its encoder goes on, the head is a new one ({why})"
    before, after = (
        {name.removeprefix("model."): tensor for name, tensor in each.module.state_dict().items()}
        for each in (first, network)
    )
    encoder = [name for name in after if name.startswith(SYSTEMS[system].trained) and name in before]
    assert len(encoder) > 20
    others = [name for name in encoder if not torch.equal(before[name], after[name][: len(before[name])])]
    assert not others
    shared = [name for name in after if "head." in name and name in before and before[name].shape == after[name].shape]
    assert all(not torch.equal(before[name], after[name]) for name in shared if name.startswith("head."))


def test_the_segment_of_a_second_image_is_not_drawn_again(tmp_path: Path) -> None:
    """NLVR2 with VL-BERT has one of its own, which another task of two images goes on with."""
    first = trained("vlbert", PAIR, "ours")
    other = digest_of_labels("xy")
    network, told = started(write_run(tmp_path / "run", first, PAIR, LABELS), PAIR, "ours", other)
    name = "model.vlbert.embeddings.segments.weight"
    assert "other labels" in told
    assert torch.equal(network.module.state_dict()[name], first.module.state_dict()[name])


def test_images_of_both_trainings_are_known_and_what_nobody_knows_stays_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", trained("vlbert", LABEL, "ours"), LABEL, LABELS, start_tells_images=True)
    (run / "tokenizer").mkdir()
    write_trained_images(run, known_keys("first"))
    found = load_model(str(run))
    start = TaskStart(SYSTEMS["vlbert"], found, first=FirstTask.of(found))
    assert start.run == run and start.knows_images
    (tmp_path / "next").mkdir()
    write_trained_images(tmp_path / "next", known_keys("second"), before=start.run)
    assert trained_among(tmp_path / "next", ["first", "second", "third"]) == ["first", "second"]
    config = run / "checkpoints" / "step-00000002" / "config.json"
    config.write_text(config.read_text().replace('"start_tells_images": true', '"start_tells_images": false'))
    assert not TaskStart(SYSTEMS["vlbert"], found, first=FirstTask.of(found)).knows_images
