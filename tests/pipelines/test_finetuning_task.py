"""Groups on the training loop: whole groups, one loss over all processes, runs that go on, measures of the task."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_model
from small_finetuning import SmallFinetuning, make_task
from small_pretraining import settings
from task_groups import ASKED, WHOLE, batches, groups, small_network

from roibeam.model.task_losses import answer_bce
from roibeam.model.vlbert.tasks import VLBertForReferring
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION
from roibeam.pipelines.finetuning.run.finetune_run import digest_of_labels
from roibeam.pipelines.finetuning.run.network import TaskNetwork, read_network, set_dropout, started_network
from roibeam.pipelines.finetuning.run.task_start import FirstTask, TaskStart, without_heads
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS, system_of
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.run_folder.files import write_json
from roibeam.pipelines.training.run_folder.training_data import known_keys, trained_among, write_trained_images


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model" / "model.safetensors")


def test_a_group_is_never_split() -> None:
    """Choices of a question stay together whatever the batch; every group comes once an epoch."""
    wanted = {group.id: len(group.rows) for group in groups(CHOICE)}
    for batch_size, ranks in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1)):
        task = make_task("vilbert", CHOICE, batch_size=batch_size)
        streams = [task.batches(0, rank=rank, num_ranks=ranks) for rank in range(ranks)]
        made = [next(stream) for _ in range(4 // batch_size // ranks) for stream in streams]
        sizes = {name: size for batch in made for name, size in zip(batch.ids, batch.group_sizes, strict=True)}
        assert sizes == wanted
        assert all(batch.inputs.batch_size == sum(batch.group_sizes) for batch in made)


def test_batches_from_workers_are_those_of_one_process() -> None:
    alone, ahead = (
        make_task("vlbert", LABEL, batch_size=2, workers=workers).batches(0, rank=0, num_ranks=1) for workers in (0, 2)
    )
    for _ in range(3):
        one, other = next(alone), next(ahead)
        assert one.ids == other.ids and torch.equal(one.inputs.text_ids, other.inputs.text_ids)
        assert one.targets is not None and other.targets is not None and torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("kind", [LABEL, CHOICE, REGION, "pair"])
def test_a_loss_is_counted_before_the_model_runs(kind: str) -> None:
    """The mean over all processes rests on it."""
    task = make_task("visualbert", kind, batch_size=3)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    output = task.losses(task.model, batch)
    assert {name: int(term.count) for name, term in output.losses.items()} == dict(task.counts(batch))
    assert all(bool(term.total.isfinite()) and term.total > 0 for term in output.losses.values())


def test_soft_targets_are_those_of_the_groups() -> None:
    task = make_task("vlbert", LABEL, batch_size=4)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    targets = {name: row for name, row in zip(batch.ids, batch.targets.tolist(), strict=True)}  # type: ignore[union-attr]
    assert targets["group-0"] == pytest.approx([1.0, 0.3, 0.0]) and targets["group-2"] == pytest.approx([0.3, 0.0, 1.0])
    scores = task.model(batch.inputs)
    expected = answer_bce(scores, batch.targets)  # type: ignore[arg-type]
    torch.testing.assert_close(task.losses(task.model, batch).losses["task"].total, expected.total)


def test_an_evaluation_is_what_the_task_measures() -> None:
    task = make_task("vilbert", CHOICE, batch_size=2)
    values = task.evaluate()
    assert list(values) == ["first_choice"] and values["first_choice"] is not None
    assert task.evaluate() == values


@pytest.mark.parametrize(
    ("system", "kind"),
    [("vlbert", CHOICE), *(pytest.param(system, LABEL, marks=pytest.mark.slow) for system in SYSTEMS)],
)
def test_a_run_that_goes_on_is_the_run_that_was_not_ended(system: str, kind: str, tmp_path: Path) -> None:
    """Bit for bit, with dropout: order, weights, optimizer and random state."""
    run: dict[str, Any] = {"batch_size": 2, "system": system, "kind": kind, "dropout": 0.1}
    config = settings(steps=6, checkpoint_every=3)
    SmallFinetuning(tmp_path / "whole", config, **run)()
    SmallFinetuning(tmp_path / "ended", config, **run, stop_at_step=3)()
    SmallFinetuning(tmp_path / "ended", config, **run)()
    whole, ended = weights(tmp_path / "whole", 6), weights(tmp_path / "ended", 6)
    assert whole.keys() == ended.keys() and all(torch.equal(whole[name], ended[name]) for name in whole)
    first = weights(tmp_path / "whole", 3)
    assert any(not torch.equal(first[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("system", "kind", "head"),
    [
        *((system, LABEL, "ours") for system in SYSTEMS),
        *((system, LABEL, "release") for system in ("vlbert", "vilbert", "vilbert-single-stream")),
        *(("vilbert", kind, "release-mt") for kind in (LABEL, "pair", WHOLE)),
        *((system, WHOLE, "release") for system in ("vlbert", "vilbert")),
    ],
)
def test_a_network_is_read_as_it_was_written(system: str, kind: str, head: str, tmp_path: Path) -> None:
    network = small_network(system, kind, head=head)
    from safetensors.torch import save_model

    save_model(network.module, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    write_json(tmp_path / "config.json", network.described)
    found = read_network(tmp_path, SYSTEMS[system], ASKED[kind])
    state = network.module.state_dict()
    assert found.described == network.described and type(found.module) is type(network.module)
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.module.state_dict().items())


@pytest.mark.parametrize("system", ["vlbert", "vilbert", "vilbert-single-stream", "visualbert", "interbert"])
def test_the_head_of_a_release_starts_from_the_pre_trained_model(system: str) -> None:
    ours, release = small_network(system, LABEL), small_network(system, LABEL, head="release")
    encoder = {name.removeprefix("model."): tensor for name, tensor in ours.module.state_dict().items()}
    state = release.module.state_dict()
    shared = [name for name in state if name in encoder]
    assert len(shared) > 10 and all(torch.equal(state[name], encoder[name]) for name in shared)
    assert release.described["architectures"] == [SYSTEMS[system].release_heads["release"][LABEL].official]


def test_a_system_without_a_release_head_says_so() -> None:
    with pytest.raises(ValueError, match="imagebert has no head of its release for the form label"):
        small_network("imagebert", LABEL, head="release")
    with pytest.raises(ValueError, match=r"for the form label of 2 images here \(head.kind 'release'\)"):
        small_network("vilbert", "pair", head="release")
    with pytest.raises(ValueError, match=r"visualbert has no head of its release .* \(head.kind 'release-mt'\)"):
        small_network("visualbert", LABEL, head="release-mt")


def test_the_head_for_two_images_has_the_labels_of_nlvr2() -> None:
    with pytest.raises(ValueError, match="head for two images has 2 labels, as NLVR2, and this task has 5"):
        small_network("vilbert", "pair", head="release-mt", asked=OutputSpec(LABEL, 5, num_images=2))


@pytest.mark.parametrize("system", ["vlbert", "vilbert", "vilbert-single-stream", "interbert"])
def test_a_release_scores_the_whole_image_among_the_regions(system: str) -> None:
    """So it must be a candidate."""
    with pytest.raises(ValueError, match="release scores the whole image too, and it is no candidate; set whole_image"):
        small_network(system, REGION, head="release")
    network = small_network(system, WHOLE, head="release")
    batch = batches(network, system, WHOLE).batch(groups(WHOLE))
    assert batch.targets is not None
    scores = network.module(batch.inputs)
    assert scores.shape == batch.targets.shape == (4, batch.inputs.region_mask.shape[1] + 1)


def test_regions_of_vl_bert_go_through_the_transform_that_masked_ones_had() -> None:
    """The release's model of RefCOCO+ with what it starts from; its score starts anew."""
    network = small_network("vlbert", WHOLE, head="release")
    torch.manual_seed(0)
    pretrained = small_network("vlbert", WHOLE).module.model.state_dict()  # type: ignore[union-attr, operator]
    state = network.module.state_dict()
    official = VLBertForReferring(network.module.config)  # type: ignore[arg-type]
    official.load_state_dict(state)
    official.eval()
    for part in ("weight", "bias"):
        assert state[f"region_head.dense.{part}"].equal(pretrained[f"masked_region_head.dense.{part}"])
    inputs = batches(network, "vlbert", WHOLE).batch(groups(WHOLE)).inputs
    with torch.no_grad():
        assert network.module(inputs).equal(official.score_regions(inputs, official(inputs)))
    assert network.module.config.answer_dropout == 0  # type: ignore[union-attr]


def test_labels_of_the_multi_task_release_go_through_its_classifiers() -> None:
    """Linear, GELU, LayerNorm, linear on the pair; for two images on both pairs of a statement."""
    for kind, head, rows in ((LABEL, "answer_head", 1), ("pair", "image_pair_head", 2)):
        network = small_network("vilbert", kind, head="release-mt")
        module: Any = network.module
        inputs = batches(network, "vilbert", kind).batch(groups(kind)).inputs
        with torch.no_grad():
            pooled = module.encode(inputs).pooled
            expected = getattr(module, head)(pooled.reshape(4, rows * pooled.shape[1]))
            torch.testing.assert_close(module(inputs), expected)
        assert module.gqa_answer_head is None and (kind == LABEL) == (module.answer_head is not None)


def heads_there_are() -> list[tuple[str, str, str]]:
    """System, form, head: ours, and those that a release has; two systems have no element for the whole image."""
    forms = (LABEL, CHOICE, WHOLE, "pair")
    return [
        (system, form, head)
        for system, form, head in product(SYSTEMS, forms, ("ours", "release", "release-mt"))
        if (head == "ours" or ASKED[form].of_head in SYSTEMS[system].release_heads.get(head, {}))
        and not (form == WHOLE and system in ("visualbert", "imagebert"))
    ]


@pytest.mark.parametrize(("system", "form", "head"), heads_there_are())
def test_what_is_trained_is_what_the_task_reads(system: str, form: str, head: str) -> None:
    """Pre-training heads and those of other tasks are not; all of the encoder is, the baseline's too."""
    task = make_task(system, form, batch_size=4, head=head)
    torch.manual_seed(0)
    for term in task.losses(task.model, next(task.batches(0, rank=0, num_ranks=1))).losses.values():
        term.mean.backward()
    parameters = dict(task.model.named_parameters())
    read = {name for name, each in parameters.items() if each.grad is not None}
    trained = {name for name, each in parameters.items() if each.requires_grad}
    # Of what the encoder has, these are read by other rows or tasks alone.
    unread = ("pooler", "masked_", "segment", "text_only", "region_positions", "global_feature")
    if form == WHOLE:  # after the streams met for the last time
        unread += (".text_layers.", ".text_", "interbert.text.")
    assert {name for name in trained - read if not any(part in name for part in unread)} == set()
    assert len(trained) > 20
    given = {id(each) for group in task.parameter_groups() for each in group["params"]}
    assert given == {id(parameters[name]) for name in trained}


@pytest.mark.parametrize(
    ("system", "head"),
    [
        *((system, "release") for system in ("vlbert", "vilbert", "visualbert")),
        *((system, "ours") for system in ("imagebert", "interbert")),
    ],
)
def test_dropout_is_that_of_the_settings_everywhere(system: str, head: str) -> None:
    """At 0 a model in training says the same twice, and what it says in evaluation; else it does not."""
    network = small_network(system, LABEL, head=head, dropout=0.3)
    inputs = batches(network, system, LABEL).batch(groups(LABEL)).inputs
    settled = network.module(inputs)
    network.module.train()
    assert not torch.equal(network.module(inputs), network.module(inputs))
    set_dropout(network, 0.0)
    torch.testing.assert_close(network.module(inputs), settled)


# --- a model that was fine-tuned learns another task ---

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
