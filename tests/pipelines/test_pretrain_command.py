"""`roibeam pretrain` as a user runs it: on a store that `extract` wrote, and on everything that is not one."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from disturbed_runs import Command, Run
from tiny_commands import Cli, ok, one_line, tiny_run, tiny_sizes

TINY_MODEL = tiny_run(steps=4)


def test_a_run_and_its_continuation(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    done = ok(roibeam("pretrain", tmp_path / "run", *options, "--inspect-batch", 3))
    assert (tmp_path / "run" / "batch.html").read_text().count("sequence: text") == 3
    assert "8 of 8 captions joined (8 by id)" in done.err and "4 steps" in done.out
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == [1, 2, 3, 4]
    again = roibeam("pretrain", tmp_path / "run", *options, "--no-resume")
    assert again.code == 1 and "already holds a run; resume it, or choose another folder" in again.err
    assert roibeam("pretrain", tmp_path / "run", *options, "--resume", "--json").code == 0


def test_a_second_stage_takes_over_configuration_and_tokenizer(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ("--store", store[0], "--captions", store[1])
    assert roibeam("pretrain", tmp_path / "one", *options, *TINY_MODEL).code == 0
    share = ("--steps", 2, "--batch-size", 4, "--set", "data.share=0.5", "--precision", "bf16")
    done = ok(roibeam("pretrain", tmp_path / "two", *options, *share, "--from-run", tmp_path / "one", "--json"))
    facts = json.loads(done.out.splitlines()[-1])
    resolved = json.loads((tmp_path / "two" / "config.json").read_text())
    assert resolved["train"]["precision"] == "bf16"
    assert resolved["task"]["model"]["hidden_size"] == 32 and facts["captions"] == 8
    assert (tmp_path / "two" / "tokenizer" / "tokenizer.json").read_bytes() == (
        tmp_path / "one" / "tokenizer" / "tokenizer.json"
    ).read_bytes()
    both = roibeam("pretrain", tmp_path / "three", *options, "--from-run", tmp_path / "one", "--from-bert", "x")
    assert both.code != 0 and "starts from one of them" in both.err


def test_the_same_command_goes_on_and_another_is_refused(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    chosen = ("evaluate_every=2", "best_by=masked_words", "best_is=lowest", "average_rate=0.9")
    settings = ("--json", *(part for each in chosen for part in ("--set", f"train.{each}")))
    first = ok(roibeam("pretrain", tmp_path / "run", *options, *settings))
    facts = json.loads(first.out.splitlines()[-1])
    assert (tmp_path / "run" / "report.html").is_file() and Path(facts["best"]).is_dir()
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
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
        lines[name] = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
    assert [each["loss"] for each in lines["here"]] == [each["loss"] for each in lines["staged"]]
    assert len(list((tmp_path / "disk").glob("part-*.lmdb"))) == 1


def test_systems_with_pairs_that_do_not_match(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    for system in ("vilbert", "vilbert-single-stream", "interbert"):
        options = ("--store", store[0], "--captions", store[1], "--system", system, "--steps", 4, "--batch-size", 4)
        run = tmp_path / system
        done = ok(roibeam("pretrain", run, *options, *tiny_sizes(system), "--set", "sampling.max_regions=10"))
        assert "matching, right" in done.out
        assert json.loads((run / "config.json").read_text())["task"]["sampling"]["max_regions"] == 10
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        assert [set(row) >= {"masked_words", "masked_regions", "matching"} for row in log] == [True] * 4


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
    assert "choose one of small, base, base-2-co-attentions" in sizes
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_one_image_has_no_mismatched_caption(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("a dog\tsample_00000.jpg\na cat\tsample_00000.jpg\n")
    base = ("--store", store[0], "--captions", tmp_path / "c.tsv", "--system", "vilbert", *tiny_sizes("vilbert"))
    done = roibeam("pretrain", tmp_path / "run", *base, "--steps", 3)
    assert "mismatched pairs need a second image" in one_line(done)


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
        (["--precision", "bf16", "--set", "train.precision=fp32"], "--set train.precision both say the precision"),
        (["--model", "huge"], "choose one of small, base"),
        (["--tokenizer", "nowhere"], "no such file or folder: --tokenizer 'nowhere'"),
        (["--device", "tpu"], "expected auto, cpu, cuda or cuda:<n>"),
        (["--num-classes", "7"], "--num-classes says 7; leave the option out"),
        (["--captions", "missing.json"], "no such file or folder: --captions 'missing.json'"),
        (["--store", "{tmp}"], "no feature store here"),
        (["--store", "gs://bucket/store"], "so name a folder on a local disk with --cache-dir"),
        (["--cache-gb", "1"], "so name a folder on a local disk with --cache-dir"),
    ],
)
def test_user_errors_are_one_clear_line(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path, options: list[str], words: str
) -> None:
    extra = [option.format(tmp=tmp_path) for option in options]
    given = {"--store": store[0], "--captions": store[1]}
    base = [part for name, value in given.items() if name not in extra for part in (name, value)]
    line = one_line(roibeam("pretrain", tmp_path / "run", *base, *TINY_MODEL, *extra))
    assert words in line
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


def test_captions_of_other_images_are_refused_with_an_example(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "c.tsv").write_text("a dog\tdogs/rex.jpg\n")
    done = roibeam("pretrain", tmp_path / "run", "--store", store[0], "--captions", tmp_path / "c.tsv", *TINY_MODEL)
    line = one_line(done)
    assert "dogs/rex" in line and "sample_0000" in line


def test_a_damaged_checkpoint_is_one_clear_line(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--store", store[0], "--captions", store[1], *TINY_MODEL)
    assert roibeam("pretrain", tmp_path / "run", *options).code == 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-00000004")
    for name in ("optimizer.safetensors", "state.json"):
        kept = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(kept[: len(kept) // 2])
        assert f"{checkpoint / name}: is damaged: its SHA-256" in one_line(
            roibeam("pretrain", tmp_path / "run", *options, "--resume")
        )
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


def test_every_system_trains_and_says_what_it_made_of_the_captions(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
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
    refused = roibeam(
        "pretrain", tmp_path / "no", *given, "--system", "imagebert", "--text-corpus", tmp_path / "corpus.txt"
    )
    assert one_line(refused).endswith("ImageBERT reads no text without images; leave out the text corpus, or train a "
                                      "VL-BERT")  # fmt: skip
    refused = roibeam("pretrain", tmp_path / "no", *given, "--text-corpus", tmp_path / "gone.txt")
    assert "no such file or folder: --text-corpus" in one_line(refused)
    assert "choose one of vlbert, visualbert" in one_line(roibeam("pretrain", tmp_path / "no", *given, "--system", "b"))
