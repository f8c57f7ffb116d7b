"""`roibeam pretrain` as a user runs it: on a store that `extract` wrote, on several, paired in their order, and on
everything that is not one; the same asked for from Python."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import Command, Run
from tiny_commands import Cli, Pictures, extract, ok, one_line, tiny_run, tiny_sizes
from toy_training import log_of

from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_run import RequestedStage, run_pretraining, run_stages
from roibeam.pipelines.toyworld.rendering import draw_samples

TINY_MODEL = tiny_run(steps=4)


def test_a_run_and_its_continuation(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    tried = json.loads(ok(roibeam("pretrain", tmp_path / "run", *options, "--dry-run", "--json")).out)
    assert (tried["steps"], tried["epoch"], len(tried["seconds"])) == (4, 8, 3) and not (tmp_path / "run").exists()
    staged = one_line(roibeam("pretrain", tmp_path / "run", *options, "--dry-run", "--stage", "", "--stage", ""))
    assert "--dry-run is for one run" in staged
    done = ok(roibeam("pretrain", tmp_path / "run", *options, "--inspect-batch", 3))
    assert (tmp_path / "run" / "batch.html").read_text().count("sequence: text") == 3
    assert "8 of 8 captions joined (8 by id)" in done.err and "4 steps" in done.out
    assert [row["step"] for row in log_of(tmp_path / "run")] == [1, 2, 3, 4]
    again = roibeam("pretrain", tmp_path / "run", *options, "--no-resume")
    assert again.code == 1 and "already holds a run; resume it, or choose another folder" in again.err
    assert roibeam("pretrain", tmp_path / "run", *options, "--resume", "--json").code == 0


def test_a_second_stage_takes_over_config_and_tokenizer(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1])
    assert roibeam("pretrain", tmp_path / "one", *options, *TINY_MODEL).code == 0
    share = ("--steps", 2, "--batch-size", 4, "--set", "data.share=0.5", "--precision", "bf16")
    done = ok(roibeam("pretrain", tmp_path / "two", *options, *share, "--from-run", tmp_path / "one", "--json"))
    facts = json.loads(done.out.splitlines()[-1])
    resolved = json.loads((tmp_path / "two" / "config.json").read_text())
    assert resolved["train"]["precision"] == "bf16"
    assert resolved["task"]["model"]["hidden_size"] == 32 and facts["captions"] == 8
    one, two = ((tmp_path / name / "tokenizer" / "tokenizer.json").read_bytes() for name in ("one", "two"))
    assert one == two
    both = roibeam("pretrain", tmp_path / "three", *options, "--from-run", tmp_path / "one", "--from-bert", "x")
    assert both.code != 0 and "starts from one of them" in both.err


def test_the_same_command_goes_on_another_is_refused(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    chosen = ("evaluate_every=2", "best_by=masked_words", "best_is=lowest", "average_rate=0.9")
    settings = ("--json", *(part for each in chosen for part in ("--set", f"train.{each}")))
    facts = json.loads(ok(roibeam("pretrain", tmp_path / "run", *options, *settings)).out.splitlines()[-1])
    assert (tmp_path / "run" / "report.html").is_file() and Path(facts["best"]).is_dir()
    lines = log_of(tmp_path / "run", "evaluation.jsonl")
    assert [line["step"] for line in lines] == [0, 2, 4]
    # What is printed in the end was measured on the average, as the last of the evaluations was.
    assert all(lines[-1][name] == value for name, value in facts["evaluation"].items())
    again = roibeam("pretrain", tmp_path / "run", *options, *settings)
    assert json.loads(again.out.splitlines()[-1])["evaluation"] == facts["evaluation"]
    other = roibeam("pretrain", tmp_path / "run", *options, *settings, "--learning-rate", "0.5")
    assert "belongs to another configuration (train.learning_rate: 0.0001 -> 0.5)" in one_line(other)
    vocabulary = tmp_path / "run" / "tokenizer"
    same = roibeam("pretrain", tmp_path / "run", *options, *settings, "--tokenizer", vocabulary)
    assert same.code == 0 and "goes on with its own tokenizer" in same.err


@pytest.mark.faults
def test_a_command_told_to_stop_leaves_a_checkpoint_and_goes_on(store: tuple[Path, Path], tmp_path: Path) -> None:
    run, seen = tmp_path / "run", 0
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL, "--device", "cpu", "--threads", 1)
    command = Command(tuple(map(str, ("pretrain", run, *options, "--steps", 100_000))))
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        going_on = Run(command, tmp_path)
        deadline = time.monotonic() + 60
        while len(steps_of(run)) < seen + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(going_on.process.pid or 0, number)
        ended = going_on.wait()
        assert ended.code == code and "Traceback" not in ended.said, ended.said
        steps = steps_of(run)
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > seen
        said = f"stopped by {number.name} after step {len(steps):,} of 100,000; its checkpoint {run / 'checkpoints'}"
        assert ended.last_line.startswith(f"roibeam: {said}"), ended.said
        assert " stays; to go on: " in ended.last_line and f"pretrain {run} --store" in ended.last_line
        seen = len(steps)


def steps_of(run: Path) -> list[int]:
    lines = (run / "log.jsonl").read_text().splitlines(keepends=True) if (run / "log.jsonl").exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def test_a_store_at_a_url_trains_alike(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    places = {"here": [store[0]], "staged": [store[0].as_uri(), "--cache-dir", tmp_path / "disk", "--cache-gb", "1"]}
    lines = {}
    for name, place in places.items():
        ok(roibeam("pretrain", tmp_path / name, "--captions", store[1], *TINY_MODEL, "--store", *place))
        lines[name] = log_of(tmp_path / name)
    assert [each["loss"] for each in lines["here"]] == [each["loss"] for each in lines["staged"]]
    assert len(list((tmp_path / "disk").glob("part-*.lmdb"))) == 1


def test_systems_with_pairs_that_do_not_match(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    for system in ("vilbert", "vilbert-single-stream", "interbert"):
        options = ("--store", store[0], "--captions", store[1], "--system", system, "--steps", 4, "--batch-size", 4)
        run = tmp_path / system
        done = ok(roibeam("pretrain", run, *options, *tiny_sizes(system), "--set", "sampling.max_regions=10"))
        assert "matching, right" in done.out
        assert json.loads((run / "config.json").read_text())["task"]["sampling"]["max_regions"] == 10
        assert [set(row) >= {"masked_words", "masked_regions", "matching"} for row in log_of(run)] == [True] * 4


UNFIT_VILBERT = {
    "sampling.negatives=images": "negatives must be one of caption, image, caption_or_image",
    "sampling.mask=x": "sampling has no field 'mask'",
    "model.with_match_head=false": "set sampling.mismatched_probability to 0",
    "model.max_position_embeddings=30": "set sampling.max_pieces or max_position_embeddings",
    "model.region_target_size=9": "the model has 9 region labels",
    "model.region_loss=classes": "region_loss is 'classes'",
    "model.num_task_tokens=20": "set num_task_tokens to 0",
}


def test_what_does_not_fit_a_vilbert_is_one_clear_line(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    base = ("--store", store[0], "--captions", store[1], "--system", "vilbert", "--steps", 1, *tiny_sizes("vilbert"))
    for setting, words in UNFIT_VILBERT.items():
        assert words in one_line(roibeam("pretrain", tmp_path / "run", *base, "--set", setting)), setting
    sizes = one_line(roibeam("pretrain", tmp_path / "run", *base, "--model", "huge"))
    assert "choose one of tiny, small, base, base-2-co-attentions" in sizes
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_captions_of_other_images_or_of_one_are_refused(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    vilbert = ("--system", "vilbert", "--steps", 3, *tiny_sizes("vilbert"))
    for name, content, options, words in (
        ("alone", "a dog\tsample_00000.jpg\na cat\tsample_00000.jpg\n", vilbert, "pairs need a second image"),
        ("other", "a dog\tdogs/rex.jpg\n", TINY_MODEL, "dogs/rex"),  # with an example of each
    ):
        (tmp_path / f"{name}.tsv").write_text(content)
        given = ("--store", store[0], "--captions", tmp_path / f"{name}.tsv", *options)
        line = one_line(roibeam("pretrain", tmp_path / name, *given))
        assert words in line and (name == "alone" or "sample_0000" in line)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "model.hidden_sise=8"], "hidden_sise"),
        (["--set", "model.hidden_size=abc"], "model settings"),
        (["--set", "model.hidden_size=33"], "model settings"),
        (["--set", "train.betas=[0.9]"], "betas must be two numbers"),
        (["--set", "train.stepz=3"], "did you mean steps"),
        (["--set", "sampling.word_probability=7"], "word_probability must be in 0..1"),
        (["--precision", "tf32"], "--precision 'tf32': choose one of float32, bf16, fp16"),
        (["--precision", "bf16", "--set", "train.precision=fp32"], "--set train.precision both set the precision"),
        (["--model", "huge"], "choose one of tiny, small, base"),
        (["--tokenizer", "nowhere"], "no such file or folder: --tokenizer 'nowhere'"),
        (["--device", "tpu"], "expected auto, cpu, cuda or cuda:<n>"),
        (["--num-classes", "7"], "--num-classes says 7; leave the option out"),
        (["--captions", "missing.json"], "no such file or folder: --captions 'missing.json'"),
        (["--store", "{tmp}"], "no feature store here"),
        (["--store", "gs://bucket/store"], "so name a folder on a local disk with --cache-dir"),
        (["--cache-gb", "1"], "so name a folder on a local disk with --cache-dir"),
    ],
)
def test_user_errors(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path, options: list[str], words: str) -> None:
    extra = [option.format(tmp=tmp_path) for option in options]
    given = {"--store": store[0], "--captions": store[1]}
    base = [part for name, value in given.items() if name not in extra for part in (name, value)]
    assert words in one_line(roibeam("pretrain", tmp_path / "run", *base, *TINY_MODEL, *extra))
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_folders_with_other_things_are_left_alone(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    before = sorted(path.name for path in store[0].iterdir())
    assert "choose" in one_line(roibeam("pretrain", store[0], *options))
    assert sorted(path.name for path in store[0].iterdir()) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    assert "not empty and no run of ours" in one_line(roibeam("pretrain", tmp_path / "other", *options))
    assert "is a file" in one_line(roibeam("pretrain", tmp_path / "other" / "thesis.tex", *options))


def test_a_damaged_checkpoint_is_one_clear_line(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    assert roibeam("pretrain", tmp_path / "run", *options).code == 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-00000004")
    for name in ("optimizer.safetensors", "state.json"):
        kept = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(kept[: len(kept) // 2])
        line = one_line(roibeam("pretrain", tmp_path / "run", *options, "--resume"))
        assert f"{checkpoint / name}: is damaged: its SHA-256" in line
        (checkpoint / name).write_bytes(kept)
    for folder, remedy in (
        (checkpoint, "other trainings with --resume-from step-0000000"),
        (tmp_path / "run", f"put that of {checkpoint} in its"),
    ):
        kept = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(kept[: len(kept) // 2])
        line = one_line(roibeam("pretrain", tmp_path / "run", *options, "--resume"))
        assert str(folder / "config.json") in line and remedy in line
        (folder / "config.json").write_bytes(kept)
    shutil.rmtree(checkpoint)
    assert roibeam("pretrain", tmp_path / "run", *options, "--resume").code == 0  # from the one before
    early = tmp_path / "checkpoints" / "early"  # a run's folder may have any name
    early.mkdir(parents=True)
    (early / "config.json").write_text("{")
    assert "no checkpoint to go on from: remove" in one_line(roibeam("pretrain", early, *options))


def test_every_system_trains_and_tells_of_its_captions(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    rows = json.loads(store[1].read_text())
    by_name = {image["id"]: image["file_name"] for image in rows["images"]}
    texts = [(row["caption"], by_name[row["image_id"]]) for row in rows["annotations"]]
    lines = [f"{text}\t{name}\n".encode() for text, name in texts for text in (text, f"again {text}")]
    lines += [f"\t{texts[0][1]}\n".encode(), f"{'word ' * 600}\t{texts[1][1]}\n".encode()]
    lines += ["caf\xe9 by the sea\t".encode("latin-1") + texts[2][1].encode() + b"\n"]
    (tmp_path / "captions.tsv").write_bytes(b"".join(lines))
    (tmp_path / "corpus.txt").write_text("it was a dark night\nthe ship sailed on\n")
    given = ("--store", store[0], "--captions", tmp_path / "captions.tsv", *TINY_MODEL, "--json")
    cut = {"vlbert": 61, "visualbert": 126, "imagebert": 42, "vlbert uncut": 508, "imagebert short": 40}
    for name, words in cut.items():
        system, *uncut = name.split()
        more: tuple[Any, ...] = ("--text-corpus", tmp_path / "corpus.txt") if system == "vlbert" else ()
        more += ("--set", "sampling.max_elements=0") if uncut == ["uncut"] else ()
        more += ("--set", "model.max_position_embeddings=42") if uncut == ["short"] else ()
        done = ok(roibeam("pretrain", tmp_path / name, *given, "--system", system, *more))
        facts = json.loads(done.out.splitlines()[-1])
        assert facts["captions"] == 17 and ("text_only_words" in facts["evaluation"]) == (system == "vlbert")
        assert "2 rows left out: 1 empty caption, 1 not UTF-8 (lines 17, 19)" in facts["notes"]
        assert f"1 caption of more than {words} words will be cut; the longest has 600" in facts["notes"]
    texts = ("--text-corpus", tmp_path / "corpus.txt")
    refused = one_line(roibeam("pretrain", tmp_path / "no", *given, "--system", "imagebert", *texts))
    assert refused.endswith("reads no text without images; leave out the text corpus, or train a VL-BERT")
    refused = roibeam("pretrain", tmp_path / "no", *given, "--text-corpus", tmp_path / "gone.txt")
    assert "no such file or folder: --text-corpus" in one_line(refused)
    assert "choose one of vlbert, visualbert" in one_line(roibeam("pretrain", tmp_path / "no", *given, "--system", "b"))


# --- several stores ---


THREE_STEPS = tiny_run(steps=3)


@pytest.fixture(scope="module")
def stores(
    pictures: Pictures, tmp_path_factory: pytest.TempPathFactory, tiny_network: tuple[str, ...]
) -> tuple[Path, Path, Path]:
    """A store that keeps its captions, one that does not, and the captions of both."""
    own = tmp_path_factory.mktemp("stores") / "own"
    extract(pictures.photos, own, "--captions", pictures.captions, *tiny_network)
    return own, pictures.store, pictures.captions


def test_two_stores_by_weight(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    given: list[object] = []
    for store, of_it, weight in ((own, "own", 1), (bare, captions, 3)):
        given += ["--store", store, "--captions", of_it, "--store-weight", weight]
    done = ok(roibeam("pretrain", tmp_path / "run", *given, *THREE_STEPS, "--json", "--inspect-batch", 2))
    facts = json.loads(done.out.splitlines()[-1])
    told = [(each["store"], each["weight"], each["captions"]) for each in facts["sources"]]
    assert told == [(str(own), 1, 8), (str(bare), 3, 8)] and facts["captions"] == 16
    assert (tmp_path / "run" / "batch.html").is_file()
    again = ok(roibeam("pretrain", tmp_path / "run", *given, *THREE_STEPS))
    assert again.err.count(f"{own}: 8 of 8 captions joined (8 by id)") == 1 and "captions joined" not in again.out
    assert again.err.count(f"{bare}: 8 of 8 captions joined") == 1
    other = one_line(roibeam("pretrain", tmp_path / "run", *given[:-1], 4, *THREE_STEPS))
    assert "belongs to another configuration (task.sources: " in other


def test_stores_at_urls_are_staged_side_by_side(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    given = ("--captions", captions, "--captions", captions, *THREE_STEPS)
    here = roibeam("pretrain", tmp_path / "here", "--store", own, "--store", bare, *given)
    staged = ("--store", own.as_uri(), "--store", bare.as_uri(), "--cache-dir", tmp_path / "disk", "--cache-gb", "1")
    there = roibeam("pretrain", tmp_path / "there", *staged, *given)
    assert here.code == 0 and there.code == 0, there.err
    losses = [[line["loss"] for line in log_of(tmp_path / name)] for name in ("here", "there")]
    assert losses[0] == losses[1] and sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["1", "2"]


def test_a_store_whose_run_has_not_finished_is_told(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    """A run that added images was killed before its first new shard: nothing else of the store says so."""
    given = ("--captions", store[1], *THREE_STEPS)
    own = Path(shutil.copytree(store[0], tmp_path / "own"))
    whole = roibeam("store", "info", own)
    plan = json.loads((own / "plan.json").read_text())
    del plan["sha256"]
    number = len(plan["shards"])
    plan["shards"].append({"number": number, "num_images": 12, "members_digest": "0" * 64})
    (own / "plan.json").write_text(json.dumps(plan))
    missing = f"1 of {number + 1} planned shards (12 of 20 images) are missing"
    line = f"a run that adds images has not finished: {missing}; run the same command again"
    info = roibeam("store", "info", own)
    assert f"  unfinished      {line}\n" in info.out and "unfinished" not in whole.out
    assert json.loads(roibeam("store", "info", own, "--json").out)["unfinished"]["missing_images"] == 12
    verified = roibeam("store", "verify", own)
    assert verified.code == 1 and f"plan.json: {line}\n" in verified.out
    assert f"plan/part-{number:05d}.jsonl: is missing; run the same command again" in verified.out
    members = own / "plan" / "part-00000.jsonl"
    members.write_text(members.read_text().replace("sample_00001", "sample_0000l"))
    told = "plan/part-00000.jsonl: is damaged (its images are not those that plan.json states); run the same"
    assert told in roibeam("store", "verify", own, "--deep").out and told not in verified.out
    for done in (
        roibeam("store", "copy", own, tmp_path / "copy"),
        roibeam("pretrain", tmp_path / "run", "--store", own, *given),
    ):
        assert done.code == 0 and done.err.count(f"{own}: {line}") == 1


def test_what_does_not_pair_is_one_clear_line(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    both = ("--store", own, "--store", bare)
    weights = ("--store-weight", 1, "--store-weight", 2, "--store-weight", 3)
    own_first, each = ("--captions", "own", "--captions", captions), "for each --store"
    for more, words in (
        (("--captions", captions), f"2 --store but 1 --captions: give one --captions {each}, in the same order"),
        (("--captions", captions), "(own names those that a store keeps), or none at all"),
        (weights, f"2 --store but 3 --store-weight: give one --store-weight {each}"),
        ((), f"{bare} has no captions of its own; name a caption file with --captions"),
        ((*own_first, "--store-weight", 1, "--store-weight", 0), "positive numbers, got 1, 0"),
        ((*own_first, "--end-to-end"), "end to end a run reads one store, got 2"),
    ):
        end = ("--detector", "small", "--weights", "random:1") if "--end-to-end" in more else ()
        assert words in one_line(roibeam("pretrain", tmp_path / "run", *both, *more, *end, *THREE_STEPS)), words
    alone = one_line(roibeam("pretrain", tmp_path / "run", "--store", own, "--store-weight", 2, *THREE_STEPS))
    assert "weights are for mixing several stores; one store needs none" in alone
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_several_caption_files_of_one_store(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The halves of a file are the whole; and a plain list is a caption file."""
    _, bare, captions = stores
    whole = json.loads(captions.read_text())
    names = {image["id"]: image["file_name"] for image in whole["images"]}
    rows = [{"image": names[row["image_id"]], "caption": row["caption"]} for row in whole["annotations"]]
    for part, chosen in (("a", rows[:3]), ("b", [*rows[3:], {"image": "x.jpg", "caption": " "}])):
        (tmp_path / f"{part}.json").write_text(json.dumps(chosen))
    halves = [part for name in "ab" for part in ("--captions", tmp_path / f"{name}.json")]
    done = roibeam("pretrain", tmp_path / "halves", "--store", bare, *halves, *THREE_STEPS, "--json")
    assert done.code == 0 and "8 of 8 captions joined" in done.err, done.err
    assert roibeam("pretrain", tmp_path / "whole", "--store", bare, "--captions", captions, *THREE_STEPS).code == 0
    configs = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("halves", "whole")]
    assert configs[0]["task"]["captions"] == configs[1]["task"]["captions"]
    assert json.loads(done.out)["notes"] == ["b.json: 1 row left out: 1 empty caption (entry 6)"]
    own = one_line(roibeam("pretrain", tmp_path / "no", "--store", bare, *halves, "--captions", "own", *THREE_STEPS))
    assert "--captions own: the captions that a store keeps are not joined with files" in own


def test_what_comes_twice_is_counted(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    twice = ("--store", own, "--captions", captions, "--store", bare, "--captions", captions)
    done = roibeam("pretrain", tmp_path / "two", *twice, *THREE_STEPS)
    assert "in more than one store: 8 image ids, such as " in done.err and "come again" not in done.err
    same = ("--store", bare, "--captions", captions, "--captions", captions)
    again = roibeam("pretrain", tmp_path / "same", *same, *THREE_STEPS)
    assert "8 captions of 16 come again word for word, of the same image" in again.err


def test_captions_without_a_word_are_called_so(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, bare, captions = stores
    content = json.loads(captions.read_text())
    content["annotations"] = [{**row, "caption": " "} for row in content["annotations"]]
    (tmp_path / "empty.json").write_text(json.dumps(content))
    given = ("--store", bare, "--captions", tmp_path / "empty.json", "--tokenizer", "captions")
    line = one_line(roibeam("pretrain", tmp_path / "run", *given, *THREE_STEPS))
    said = "all of its captions are empty; give captions with words in them"
    assert line == f"roibeam: {tmp_path / 'empty.json'}: {said}"


# --- asked for from Python ---


Requests = Callable[[str], PretrainRequest]
SIZES = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=64")


@pytest.fixture
def request_of(roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> Requests:
    """Two steps on a store of eight pictures, by the name of the run's folder."""
    captions = draw_samples(tmp_path / "samples", count=8)
    rows = json.loads(captions.read_text())
    rows["annotations"].append({**rows["annotations"][0], "caption": " "})  # left out, with a note
    captions.write_text(json.dumps(rows))
    assert roibeam("extract", tmp_path / "samples" / "images", tmp_path / "store", *tiny_network).code == 0
    data = RequestedData(store=[str(tmp_path / "store")], captions=[str(captions)])
    settings = ["train.checkpoint_every=0", *(f"model.{each}" for each in SIZES)]
    training = RequestedTraining(steps=2, batch_size=4, device="cpu", threads=1, set=settings)
    return lambda name: PretrainRequest(tmp_path / name, data, RequestedModel(system="imagebert"), training)


def test_a_request_runs_as_the_command_does(roibeam: Cli, request_of: Requests, tmp_path: Path) -> None:
    asked = request_of("asked")
    result = run_pretraining(asked)
    done = roibeam(
        "pretrain", tmp_path / "told", "--store", asked.data.store[0], "--captions", asked.data.captions[0],
        "--system", "imagebert", "--steps", 2, "--batch-size", 4, "--device", "cpu", "--threads", 1, "--json",
        *(part for each in asked.training.settings for part in ("--set", each)),
    )  # fmt: skip
    assert done.code == 0, done.err
    facts, ours = json.loads(done.out.splitlines()[-1]), result.to_json()
    assert ours["run"] == str(tmp_path / "asked") and facts["run"] == str(tmp_path / "told")
    assert facts["notes"] and ours["notes"] == facts["notes"] and ours["evaluation"] == facts["evaluation"]
    assert facts.keys() - {"event", "started_from"} == ours.keys()
    name = "model/model.safetensors"
    told = Path(facts["checkpoint"]) / name
    assert (result.training.checkpoint / name).read_bytes() == told.read_bytes()
    configs = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("asked", "told")]
    assert configs[0] == configs[1]
    files = [{path.name for path in (tmp_path / run).iterdir()} for run in ("asked", "told")]
    assert files[0] == files[1]


def test_requests_in_stages(request_of: Requests, tmp_path: Path) -> None:
    """The second goes on from the weights of the first, in the folder of the whole."""
    one = request_of("unused")
    two = replace(one, training=replace(one.training, seed=1))
    told = []
    stages = [RequestedStage("first", one, ["--seed 0"]), RequestedStage("second", two, ["--seed 1"])]
    run_stages(tmp_path / "run", stages, tell=lambda request, result: told.append((request, result)))
    assert [request.out.name for request, _ in told] == ["stage-1", "stage-2"]
    assert told[0][0].model.from_run is None and told[1][0].model.from_run == str(tmp_path / "run" / "stage-1")
    recorded = json.loads((tmp_path / "run" / "stage-2" / "config.json").read_text())["recorded"]
    assert recorded["start"] == str(told[0][1].training.checkpoint / "model")
    losses = [[line["loss"] for line in log_of(tmp_path / "run" / name)] for name in ("stage-1", "stage-2")]
    assert losses[0] != losses[1]
    run_stages(tmp_path / "run", stages, tell=lambda request, result: pytest.fail("both are done"))
    lost = replace(two, data=replace(two.data, captions=["none.json"]))
    with pytest.raises(ValueError, match=r"^stage 2 \(lost\): --captions: no file here: 'none.json'$"):
        run_stages(tmp_path / "new", [stages[0], RequestedStage("lost", lost, [])])
    assert not (tmp_path / "new" / "stage-1").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (RequestedModel(recipe="imagebert-stage-2"), "goes on from imagebert-stage-1: name its run with --from-run"),
        (RequestedModel(recipe="imagebert-stage-1", system="vlbert"), "leave --system and --model out"),
        (RequestedModel(toy=True), "--toy is the small variant of a --recipe"),
        (RequestedModel(background="middle"), "--background 'middle': choose one of first, last, none"),
        (RequestedModel(background="first"), "of a model to start from, name it with --from-run"),
        (RequestedModel(model="huge"), "--model 'huge': choose one of tiny"),
    ],
)
def test_requests_that_are_none(tmp_path: Path, model: RequestedModel, words: str) -> None:
    asked = PretrainRequest(tmp_path / "run", RequestedData(store=["nowhere"]), model)
    with pytest.raises(ValueError, match=words):
        run_pretraining(asked)
    with pytest.raises(ValueError, match="name the store that roibeam extract wrote"):
        run_pretraining(replace(asked, data=RequestedData()))
    assert not (tmp_path / "run").exists()
