"""Stages in a row: one command, each from the weights of the one before, and killed anywhere it goes on to the same
bits."""

import dataclasses
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from captioned_records import FakeStore
from disturbed_runs import NETWORK, Command, Ended, Run
from ranks import run_ranks, said
from safetensors.torch import load_file
from staged_training import KilledAtMark
from tiny_commands import TINY_SIZES, Cli, Pictures, ok, one_line
from toy_training import assert_equal_checkpoints, log_of
from training_fail_points import BACKWARD, JSON, LOG_LINE, NAMED, RENAME, TENSORS, Killed

from roibeam.pipelines.data.captions.captioned_store import check_pair_agrees
from roibeam.pipelines.pretraining.recipes.published import RECIPES, stages_before
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.run_folder.stages import StagedRun, furthest_stage
from roibeam.pipelines.training.run_folder.training_data import trained_among


@dataclasses.dataclass(frozen=True)
class World:
    """A store of eight pictures, two caption files, and an undisturbed run in two stages over them.

    Attributes:
        extra: options of all of its commands.
    """

    pictures: Pictures
    folder: Path
    undisturbed: Path
    extra: tuple[str, ...] = ()

    def command(self, run: Path, *more: str) -> Command:
        """Three steps on the first captions, then four at another rate; a checkpoint at the end of each."""
        one, two = (f"--captions {self.folder / name}.json" for name in "ab")
        options = ("--store", str(self.pictures.store), "--system", "imagebert", *TINY_SIZES)
        options += (
            "--batch-size", "3", "--threads", "1", "--set", "train.checkpoint_every=0", "--set",
            "train.accumulation=2",
        )  # fmt: skip
        stages = ("--stage", f"{one} --steps 3", "--stage", f"{two} --steps 4 --learning-rate 0.001 --warmup-steps 2")
        return Command(("pretrain", str(run), *options, *stages, *self.extra, *more))

    def run(self, work: Callable[[], object]) -> Ended:
        return Run(work, self.folder).wait()


@pytest.fixture(scope="module")
def world(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("stages")
    world = World(pictures, folder, folder / "undisturbed")
    captions = json.loads(pictures.captions.read_text())
    for name, chosen in (("a", range(5)), ("b", range(2, 8))):
        rows = [row for row in captions["annotations"] if row["image_id"] in chosen]
        (folder / f"{name}.json").write_text(json.dumps(captions | {"annotations": rows}))
    ended = world.run(world.command(world.undisturbed))
    assert ended.code == 0, ended.said
    return world


AVERAGED = ("--set", "train.average_rate=0.5", "--set", "data.workers=2")


@pytest.fixture(scope="module")
def averaged(world: World) -> World:
    """The same run that keeps an average of its weights, and whose batches processes make."""
    averaged = dataclasses.replace(world, undisturbed=world.folder / "averaged", extra=AVERAGED)
    ended = averaged.run(averaged.command(averaged.undisturbed))
    assert ended.code == 0, ended.said
    return averaged


def stage(run: Path, number: int) -> Path:
    return run / f"stage-{number}"


def test_each_stage_goes_on_from_the_weights_of_the_one_before_and_from_nothing_else(world: World) -> None:
    first, second = stage(world.undisturbed, 1), stage(world.undisturbed, 2)
    assert [line["step"] for line in log_of(first)] == [1, 2, 3]
    assert [line["step"] for line in log_of(second)] == [1, 2, 3, 4]
    # Its own schedule and samples from the start, and an optimizer that has seen its steps alone.
    assert [line["learning_rate"] for line in log_of(second)][:2] == [5e-4, 1e-3]
    assert [line["samples"] for line in log_of(second)] == [6, 12, 18, 24]
    (newest,) = (second / "checkpoints").iterdir()
    counts = [tensor for name, tensor in load_file(newest / "optimizer.safetensors").items() if name.endswith("/step")]
    assert counts and {int(count) for count in counts} == {4}
    config = json.loads((second / "config.json").read_text())
    assert config["recorded"]["start"] == str(first / "checkpoints" / "step-00000003" / "model")
    tokenizers = [(run / "tokenizer" / "tokenizer.json").read_bytes() for run in (first, second)]
    assert tokenizers[0] == tokenizers[1]
    # The whole run stands for its last stage; an evaluation knows the training images of both.
    assert furthest_stage(world.undisturbed) == second
    whole, last = (load_model(str(path)).model.state_dict() for path in (world.undisturbed, second))
    assert all(torch.equal(whole[name], last[name]) for name in last)
    ids = [path.stem for path in world.pictures.photos.iterdir()]
    assert len(trained_among(first, ids) or ()) == 5
    assert trained_among(second, ids) == ids


def weights_of(run: Path, number: int, name: str = "model/model.safetensors") -> dict[str, torch.Tensor]:
    """Of the only checkpoint of a stage."""
    (checkpoint,) = (stage(run, number) / "checkpoints").iterdir()
    return load_file(checkpoint / name)


def test_the_average_goes_on_to_the_next_stage_where_a_new_one_starts_from_it(world: World, averaged: World) -> None:
    """Of the next stage, seen where its rate leaves every weight where it was."""
    ours, plain = averaged.undisturbed, world.undisturbed
    average, trained = weights_of(ours, 1), weights_of(ours, 1, "trained.safetensors")
    # Neither an average nor workers change what is trained in the first stage; the second has another start.
    assert log_of(stage(ours, 1)) == log_of(stage(plain, 1))
    assert trained.keys() == average.keys()
    assert all(torch.equal(trained[name], each) for name, each in weights_of(plain, 1).items())
    assert [line["step"] for line in log_of(stage(ours, 2))] == [1, 2, 3, 4]
    assert log_of(stage(ours, 2))[0]["loss"] != log_of(stage(plain, 2))[0]["loss"]
    still = averaged.folder / "still"
    command = averaged.command(still)
    arguments = tuple(each.replace("--learning-rate 0.001", "--learning-rate 1e-30") for each in command.arguments)
    assert arguments != command.arguments
    ended = averaged.run(Command(arguments))
    assert ended.code == 0, ended.said
    for name in ("model/model.safetensors", "trained.safetensors"):
        began = weights_of(still, 2, name)
        for part, tensor in average.items():
            torch.testing.assert_close(began[part], tensor, rtol=0, atol=1e-20)
    far = [name for name, tensor in average.items() if not torch.allclose(tensor, trained[name], rtol=0, atol=1e-6)]
    assert len(far) > 10  # else the comparison says nothing


@pytest.mark.slow
def test_the_second_stage_is_the_run_that_from_run_makes(world: World, tmp_path: Path) -> None:
    command = world.command(tmp_path)
    second = command.arguments[command.arguments.index("--stage", command.arguments.index("--stage") + 1) + 1]
    common = command.arguments[2 : command.arguments.index("--stage")]
    by_hand = ("--from-run", str(stage(world.undisturbed, 1)), *second.split())
    ended = world.run(Command(("pretrain", str(tmp_path / "alone"), *common, *by_hand)))
    assert ended.code == 0, ended.said
    runs = (stage(world.undisturbed, 2), tmp_path / "alone")
    (want,), (got,) = ((run / "checkpoints").iterdir() for run in runs)
    assert_equal_checkpoints(want, got)
    assert log_of(tmp_path / "alone") == log_of(stage(world.undisturbed, 2))


def test_console_and_report(world: World) -> None:
    page = (world.undisturbed / "report.html").read_text()
    assert "trained in 2 stages: 7 steps in" in page.partition("</header>")[0]
    assert "Stage 1 of 2" in page and "Stage 2 of 2" in page
    assert "4 of 4 steps of 6 samples" in page and "the weights of stage 1, with a new optimizer and schedule" in page
    assert '<a href="stage-2/report.html">' in page and (stage(world.undisturbed, 2) / "report.html").is_file()
    again = world.run(world.command(world.undisturbed))
    assert again.code == 0 and "stage 1 of 2 is done" in again.said
    assert "steps of" not in again.said and "look here first: all 2 stages" in again.said


def assert_goes_on(world: World, run: Path) -> None:
    """The same command again ends with the checkpoints and logs of both stages as undisturbed, and nothing else."""
    rerun = world.run(world.command(run))
    assert rerun.code == 0, rerun.said
    for number in (1, 2):
        want, got = stage(world.undisturbed, number), stage(run, number)
        assert sorted(path.name for path in got.iterdir()) == sorted(path.name for path in want.iterdir())
        (wanted,), (found,) = ((folder / "checkpoints").iterdir() for folder in (want, got))
        assert wanted.name == found.name
        if number == 1:
            assert_equal_checkpoints(wanted, found)
        else:  # whose configuration names the folder of stage 1
            names = sorted(str(path.relative_to(wanted)) for path in wanted.rglob("*") if path.is_file())
            assert names == sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file())
            for name in set(names) - {"config.json", "SHA256SUMS"}:
                assert (wanted / name).read_bytes() == (found / name).read_bytes(), name
        assert log_of(got) == log_of(want)
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in world.undisturbed.iterdir())


# Of the first stage: 6 backward passes, 3 lines, one checkpoint of three files of tensors and three of JSON after that
# of the run folder.
PLACES = [
    (TENSORS, 2),  # in the last checkpoint of stage 1
    (JSON, 3),
    (RENAME, 1),  # before it has its name
    (BACKWARD, 4),  # in the middle of stage 1
    (BACKWARD, 7),  # in the first step of stage 2
    (LOG_LINE, 4),
    (BACKWARD, 11),
    (RENAME, 2),
    (NAMED, 2),
]


@pytest.mark.faults
def test_killed_between_two_stages_it_goes_on_to_the_same_bits(world: World, tmp_path: Path) -> None:
    """Behind the last checkpoint of stage 1, before anything else is written."""
    assert_mended(world, tmp_path / "run", NAMED, 1)


@pytest.mark.faults
@pytest.mark.slow
def test_killed_between_two_stages_with_an_average_and_workers(averaged: World, tmp_path: Path) -> None:
    """Behind the last checkpoint of stage 1, whose average stage 2 starts from, and behind the note that it is done."""
    assert_mended(averaged, tmp_path / "named" / "run", NAMED, 1)
    killed = averaged.run(KilledAtMark(averaged.command(tmp_path / "marked" / "run"), 2, named=True))
    assert killed.code == -signal.SIGKILL, killed.said
    assert_goes_on(averaged, tmp_path / "marked" / "run")


# With an average a checkpoint has four files of tensors: random states, the average, the weights it is of, optimizer.
AVERAGED_PLACES = [
    (TENSORS, 2),
    (TENSORS, 3),
    (TENSORS, 4),
    (BACKWARD, 4),
    (BACKWARD, 7),  # in the first step of stage 2, before its average has moved
    (BACKWARD, 9),
    (TENSORS, 6),
    (NAMED, 2),
]


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize(("place", "count"), AVERAGED_PLACES)
def test_killed_anywhere_with_an_average_and_workers(averaged: World, tmp_path: Path, place: str, count: int) -> None:
    assert_mended(averaged, tmp_path / "run", place, count)


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize(("place", "count"), PLACES)
def test_killed_anywhere_it_goes_on_to_the_same_bits(world: World, tmp_path: Path, place: str, count: int) -> None:
    assert_mended(world, tmp_path / "run", place, count)


def assert_mended(world: World, folder: Path, place: str, count: int) -> None:
    killed = world.run(Killed(world.command(folder), place, count))
    assert killed.code == -signal.SIGKILL and f"fail point: {place}, number {count}" in killed.said, killed.said
    assert_goes_on(world, folder)


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("named", [False, True])
def test_killed_where_a_stage_is_noted_as_done(world: World, tmp_path: Path, count: int, named: bool) -> None:
    """Before and after the new stages.json has its name: of the beginning, of stage 1, of stage 2."""
    killed = world.run(KilledAtMark(world.command(tmp_path / "run"), count, named=named))
    assert killed.code == -signal.SIGKILL, killed.said
    assert_goes_on(world, tmp_path / "run")


@pytest.mark.soak(cases=True)
@pytest.mark.faults
@pytest.mark.parametrize(("place", "count", "rank"), [(NAMED, 1, 0), (TENSORS, 2, 0), (BACKWARD, 7, 1)])
def test_killed_in_one_of_two_processes(world: World, tmp_path: Path, place: str, count: int, rank: int) -> None:
    whole, killed = world.command(tmp_path / "whole"), world.command(tmp_path / "run")
    assert run_ranks(whole, 2, tmp_path / "said") == [0, 0], said(tmp_path / "said")
    codes = run_ranks(Killed(killed, place, count, rank), 2, tmp_path / "said-killed")
    assert codes[rank] == -signal.SIGKILL, said(tmp_path / "said-killed")
    assert run_ranks(killed, 2, tmp_path / "said-again") == [0, 0], said(tmp_path / "said-again")
    for number in (1, 2):
        want, got = stage(tmp_path / "whole", number), stage(tmp_path / "run", number)
        assert log_of(got) == log_of(want)
        for name in ("model/model.safetensors", "optimizer.safetensors", "rng-0.safetensors", "rng-1.safetensors"):
            (wanted,), (found,) = (list((folder / "checkpoints").glob(f"step-*/{name}")) for folder in (want, got))
            assert wanted.read_bytes() == found.read_bytes()


def test_another_command_on_a_run_in_stages(roibeam: Cli, world: World, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        return one_line(roibeam(*arguments))

    arguments = world.command(world.undisturbed).arguments
    assert "already holds a run; resume it" in refused(*arguments, "--no-resume")
    assert "--seed 1), and" in refused(*arguments, "--seed", "1")
    assert "holds a run in 2 stages, this command has 3" in refused(*arguments, "--stage", "--steps 3")
    single = arguments[2 : arguments.index("--stage")]
    store = ("--store", str(world.pictures.store))
    assert "is not empty and no run of ours" in refused("pretrain", str(world.undisturbed), *single)
    in_stages = ("--stage", "--steps 1", "--stage", "--steps 1")
    own = str(stage(world.undisturbed, 1))
    assert "is not empty and no run in stages" in refused("pretrain", own, *store, *in_stages)
    new = ("pretrain", str(tmp_path / "new"), *store)
    for wrong, words in (
        (("--stage", "--steps 1"), "one stage is no more than the command without it"),
        (("--stage", "--steps 1", "--stage", "--stepps 1"), "No such option: --stepps"),
        (("--stage", "--steps 1", "--stage", "'"), """--stage "'": No closing quotation"""),
        (("--stage", "--steps 1", "--stage", "here"), "--stage 'here': the run folder is of the whole command"),
        (("--stage", "", "--stage", "--from-run x"), "--from-run is of the whole command, not of a stage"),
        (("--stage", "", "--stage", "--no-resume"), "--resume is of the whole command"),
        (("--recipe", "imagebert-stage-2", "--stage", "--steps 1"), "has 2 stages (imagebert-stage-1, imagebert-stage"),
        (("--recipe", "imagebert-stage-2", "--stage", "", "--stage", "--recipe imagebert-cc"), "names the recipe of"),
        (("--stage", "--recipe imagebert-stage-2", "--stage", ""), "let that be the stage before"),
        (("--stage", "--steps none", "--stage", ""), "--steps 'none': expected a whole number"),
    ):
        assert words in refused(*new, *wrong), words
        assert not (tmp_path / "new" / "stage-1" / "config.json").exists()
    missing = refused("pretrain", str(tmp_path / "none"), "--stage", "", "--stage", "")
    assert "--store: name the store" in missing


def test_what_a_later_stage_would_stop_at_is_said_before_the_first(roibeam: Cli, world: World, tmp_path: Path) -> None:
    captions, out, task = world.folder / "a.json", tmp_path / "new", tmp_path / "train.jsonl"
    task.write_text('{"img_fn": "a/b.jpg", "question": ["why"], "answer_choices": []}\n')
    pictures, other = world.pictures.photos, tmp_path / "other"
    assert roibeam("extract", pictures, other, *NETWORK, "--weights", "random:8").code == 0
    for wrong, words in (
        ("--captions none.json", "stage 2: no such file or folder: --captions 'none.json'"),
        (f"--captions {tmp_path}", " is a folder; name a file"),
        ("--store nowhere", "stage 2: no such file or folder: --store 'nowhere'"),
        (f"--store {other}", "are of different feature spaces: "),
        ("--set train.stpes=5", "stage 2: --set 'train.stpes=5': train has no field 'stpes'"),
        (
            "--system visualbert --set sampling.aligned_words=release",
            "VisualBertSampling: aligned_words=release is of a task's texts",
        ),
        (
            "--recipe visualbert-task-vcr-without-coco --task-text train.jsonl",
            "stage 2 (visualbert-task-vcr-without-coco): no such file or folder: --task-text 'train.jsonl'",
        ),
        (
            f"--recipe visualbert-task-vcr-without-coco --objects {tmp_path} --task-text {task}",
            "does not record that its regions are given boxes; extract with the task's boxes",
        ),
    ):
        given = ("--store", world.pictures.store, "--stage", f"--steps 1 --captions {captions}", "--stage", wrong)
        done = roibeam("pretrain", out, *given)
        assert done.code == 1 and words in done.err and "Traceback" not in done.err, done.err
        assert not (out / "stage-1").exists()


def test_the_data_of_a_stage_that_is_done_may_be_gone(roibeam: Cli, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.pictures.store, tmp_path / "store")
    manifest = tmp_path / "store" / "manifest.json"
    own = world.folder / "a.json"
    given = ("--captions", own, "--steps", 1, "--batch-size", 2, "--set", "model.hidden_size=24")
    given += ("--set", "model.num_attention_heads=2", "--stage", f"--store {tmp_path / 'store'}")
    given += ("--stage", f"--store {world.pictures.store} --seed 1")
    ok(roibeam("pretrain", tmp_path / "run", *given))
    manifest.unlink()
    assert roibeam("pretrain", tmp_path / "run", *given).code == 0
    missing = roibeam("pretrain", tmp_path / "other", *given)
    assert missing.code == 1 and "stage 1: " in missing.err and "no manifest.json" in missing.err


def test_class_names_of_another_stage_may_be_unknown() -> None:
    first, unknown, other = FakeStore(), FakeStore(), FakeStore()
    unknown.vocabulary, other.vocabulary = {"classes": None}, {"classes": ["a", "b"]}
    remedy = "extract both with the same detector and settings"
    check_pair_agrees(first, unknown, in_one_run=False)
    with pytest.raises(ValueError, match=rf"have different class names .*; {remedy}, or train on one of them$"):
        check_pair_agrees(first, unknown, in_one_run=True)
    with pytest.raises(ValueError, match=rf"have different class names .*; {remedy}$"):
        check_pair_agrees(first, other, in_one_run=False)


def test_free_options_may_differ_where_a_stage_is_done(tmp_path: Path) -> None:
    run = StagedRun(tmp_path / "run", [["--steps 3", "--seed 1", "--set a=1", "--set a=2"], ["--steps 4"]])
    run.save()
    run.mark_done(1)
    # An option of a later version may stand elsewhere; which of two settings counts is decided by their order.
    again = StagedRun(tmp_path / "run", [["--seed 1", "--set a=1", "--set a=2", "--steps 3"], ["--steps 5"]])
    assert not StagedRun(tmp_path / "run", [["--seed 1", "--set a=2", "--set a=1", "--steps 3"], []]).is_done(1)
    assert again.is_done(1) and not again.is_done(2)
    other = StagedRun(tmp_path / "run", [["--steps 2"], ["--steps 4"]])  # stage 2 has not begun
    assert not other.is_done(1)
    (tmp_path / "run" / "stages.json").write_text("{")
    with pytest.raises(ValueError, match=r"stages\.json: is damaged"):
        StagedRun(tmp_path / "run", [[], []])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; give a folder for the run"):
        StagedRun(tmp_path / "file", [[], []])


def test_recipes_that_are_stages() -> None:
    chains = {name: stages_before(name) for name, recipe in RECIPES.items() if recipe.after}
    assert chains["imagebert-stage-2"] == ["imagebert-stage-1"]
    assert chains["visualbert-task-nlvr2"] == ["visualbert-coco-nlvr2"]
    assert all(RECIPES[name].changes.keys() <= RECIPES[name].build().to_dict().keys() for name in chains)


@pytest.mark.slow
def test_the_toy_of_a_recipe_in_stages(roibeam: Cli, world: World, made_data: Path, tmp_path: Path) -> None:
    folder = made_data / "formats" / "nlvr2"
    assert roibeam("extract", folder / "images", tmp_path / "store", *NETWORK).code == 0
    given = ("--store", str(world.pictures.store), "--captions", str(world.folder / "a.json"))
    options = ("--recipe", "visualbert-task-nlvr2", "--toy", "--steps", "1", "--batch-size", "2", *TINY_SIZES)
    own = ("--stage", "--set sampling.text_form=one_caption", "--stage", f"--store {tmp_path / 'store'}")
    texts = ("--task-text", str(folder / "train.json"))
    fast = ("--set", "train.accumulation=1", "--json")
    done = ok(roibeam("pretrain", tmp_path / "run", *given, *options, *texts, *fast, *own))
    facts = [json.loads(line) for line in done.out.splitlines()]
    assert [Path(fact["run"]).name for fact in facts] == ["stage-1", "stage-2"]
    assert facts[1]["captions"] == 5 and "matching" in facts[1]["last"]
    assert "stage 2 of 2 (visualbert-task-nlvr2)" in done.err
    assert "visualbert-coco-nlvr2" in (tmp_path / "run" / "report.html").read_text()
