"""VCR's models that are told the class of each box beside its feature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from task_groups import ASKED
from test_vcr_training import KINDS, batches_of, made_store, network_for, questions, words

from roibeam.pipelines.finetuning.rows import CHOICE
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.network import started_network
from roibeam.pipelines.finetuning.run.task_data import StorePair
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions, open_vcr


@pytest.mark.parametrize(("system", "head"), [("vlbert", "ours"), ("vlbert", "release"), ("visualbert", "ours")])
def test_a_model_is_told_the_class_of_each_box(system: str, head: str, tmp_path: Path) -> None:
    """By a token for each class (VL-BERT), or an embedding beside the feature (VisualBERT of R2C): other classes, other
    scores, and what tells them is trained. Detected regions are of class 0."""
    (tmp_path / "names.txt").write_text("person\ncup\ndog\n", "utf-8")
    options = VcrOptions(told_classes=True, object_names=str(tmp_path / "names.txt"))
    task, tokenizer = open_vcr(questions(tmp_path), options, None), words()
    assert task.input_classes is not None
    network = network_for(system, tokenizer, 48, head=head, told=task.input_classes.num_classes)
    made, groups = batches_of(system, task, made_store(), tokenizer, network), task.read("train").groups
    batch = made.batch(groups)
    assert batch.inputs.region_classes is not None and batch.inputs.region_classes[0].tolist() == [1, 2, 1, 3]
    scores = scores_of(network.module, batch, CHOICE)
    scores.sum().backward()
    (table,) = [
        p
        for n, p in network.module.named_parameters()
        if n.endswith(("bert.region_token.weight", "classed.classes.weight"))
    ]
    assert len(table) == 4 and table.grad is not None and bool(table.grad[1:].any())
    renamed = made.batch([replace(group, facts={**group.facts, "objects": KINDS[::-1]}) for group in groups])
    if system == "visualbert":  # VL-BERT's tokens start alike
        assert not torch.allclose(scores, scores_of(network.module, renamed, CHOICE))
    detected = replace(options, boxes="detected", max_boxes=7)
    pair = StorePair(made_store(num_regions=5, seed=50), made_store())
    joined = batches_of(system, open_vcr(tmp_path, detected, None), pair, tokenizer, network).batch(groups[:1]).inputs
    assert joined.region_classes is not None and joined.region_classes[0].tolist() == [0, 0, 1, 2, 1, 3]


def test_a_system_without_a_place_for_classes_says_so() -> None:
    with pytest.raises(ValueError, match="told_classes: vilbert has no place for classes of regions"):
        network_for("vilbert", words(), 48, told=4)


@pytest.mark.parametrize("system", ["vlbert", "visualbert"])
def test_a_model_that_must_be_told_starts_no_task_that_tells_nothing(system: str) -> None:
    """It stopped at the first step only, after the whole validation split."""
    told = network_for(system, words(), 48, told=4).module.model
    with pytest.raises(ValueError, match="run: this model reads the class of each region, and the task has none"):
        started_network(SYSTEMS[system], told, ASKED[CHOICE], "ours", source="run")
