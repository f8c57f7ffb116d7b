"""`roibeam pretrain` on several stores: `--store`, `--captions` and `--store-weight`, paired in their order."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_commands import Cli, Pictures, extract, ok, one_line, tiny_run

TINY_MODEL = tiny_run(steps=3)


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
    done = ok(roibeam("pretrain", tmp_path / "run", *given, *TINY_MODEL, "--json", "--inspect-batch", 2))
    facts = json.loads(done.out.splitlines()[-1])
    told = [(each["store"], each["weight"], each["captions"]) for each in facts["sources"]]
    assert told == [(str(own), 1, 8), (str(bare), 3, 8)] and facts["captions"] == 16
    assert (tmp_path / "run" / "batch.html").is_file()
    again = ok(roibeam("pretrain", tmp_path / "run", *given, *TINY_MODEL))
    assert again.err.count(f"{own}: 8 of 8 captions joined (8 by id)") == 1 and "captions joined" not in again.out
    assert again.err.count(f"{bare}: 8 of 8 captions joined") == 1
    other = one_line(roibeam("pretrain", tmp_path / "run", *given[:-1], 4, *TINY_MODEL))
    assert "belongs to another configuration (task.sources: " in other


def test_stores_at_urls_are_staged_side_by_side(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    given = ("--captions", captions, "--captions", captions, *TINY_MODEL)
    here = roibeam("pretrain", tmp_path / "here", "--store", own, "--store", bare, *given)
    staged = ("--store", own.as_uri(), "--store", bare.as_uri(), "--cache-dir", tmp_path / "disk", "--cache-gb", "1")
    there = roibeam("pretrain", tmp_path / "there", *staged, *given)
    assert here.code == 0 and there.code == 0, there.err
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("here", "there")
    ]
    assert losses[0] == losses[1] and sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["1", "2"]


def test_a_store_whose_run_has_not_finished_is_told_by_who_reads_it(
    roibeam: Cli, store: tuple[Path, Path], tmp_path: Path
) -> None:
    """A run that added images was killed before its first new shard: nothing else of the store says so."""
    given = ("--captions", store[1], *TINY_MODEL)
    own = Path(shutil.copytree(store[0], tmp_path / "own"))
    whole = roibeam("store", "info", own)
    plan = json.loads((own / "plan.json").read_text())
    del plan["sha256"]
    number = len(plan["shards"])
    plan["shards"].append({"number": number, "num_images": 12, "members_digest": "0" * 64})
    (own / "plan.json").write_text(json.dumps(plan))
    line = (
        f"a run that adds images has not finished: 1 of {number + 1} planned shards (12 of 20 images) are missing; run "
        f"the same command again"
    )
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
    for more, words in (
        (
            ("--captions", captions),
            "2 --store but 1 --captions: give one --captions for each --store, in the same order",
        ),
        (("--captions", captions), "(own names those that a store keeps), or none at all"),
        (
            ("--store-weight", 1, "--store-weight", 2, "--store-weight", 3),
            "2 --store but 3 --store-weight: give one --store-weight for each --store",
        ),
        ((), f"{bare} has no captions of its own; name a caption file with --captions"),
        (
            ("--captions", "own", "--captions", captions, "--store-weight", 1, "--store-weight", 0),
            "positive numbers, got 1, 0",
        ),
        (("--captions", "own", "--captions", captions, "--end-to-end"), "end to end a run reads one store, got 2"),
    ):
        end = ("--detector", "small", "--weights", "random:1") if "--end-to-end" in more else ()
        assert words in one_line(roibeam("pretrain", tmp_path / "run", *both, *more, *end, *TINY_MODEL)), words
    alone = one_line(roibeam("pretrain", tmp_path / "run", "--store", own, "--store-weight", 2, *TINY_MODEL))
    assert "a weight says how several stores are mixed; one store needs none" in alone
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_several_caption_files_of_one_store_are_read_one_after_the_other(
    roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The halves of a file are the whole; and a plain list is a caption file."""
    _, bare, captions = stores
    whole = json.loads(captions.read_text())
    names = {image["id"]: image["file_name"] for image in whole["images"]}
    rows = [{"image": names[row["image_id"]], "caption": row["caption"]} for row in whole["annotations"]]
    for part, chosen in (("a", rows[:3]), ("b", [*rows[3:], {"image": "x.jpg", "caption": " "}])):
        (tmp_path / f"{part}.json").write_text(json.dumps(chosen))
    halves = [part for name in "ab" for part in ("--captions", tmp_path / f"{name}.json")]
    done = roibeam("pretrain", tmp_path / "halves", "--store", bare, *halves, *TINY_MODEL, "--json")
    assert done.code == 0 and "8 of 8 captions joined" in done.err, done.err
    assert roibeam("pretrain", tmp_path / "whole", "--store", bare, "--captions", captions, *TINY_MODEL).code == 0
    digests = [
        json.loads((tmp_path / run / "config.json").read_text())["task"]["captions"] for run in ("halves", "whole")
    ]
    assert digests[0] == digests[1]
    assert json.loads(done.out)["notes"] == ["b.json: 1 row left out: 1 empty caption (entry 6)"]
    own = one_line(roibeam("pretrain", tmp_path / "no", "--store", bare, *halves, "--captions", "own", *TINY_MODEL))
    assert "--captions own: the captions that a store keeps are not joined with files" in own


def test_what_comes_twice_is_counted(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    own, bare, captions = stores
    twice = ("--store", own, "--captions", captions, "--store", bare, "--captions", captions)
    done = roibeam("pretrain", tmp_path / "two", *twice, *TINY_MODEL)
    assert "in more than one store: 8 image ids, such as " in done.err and "come again" not in done.err
    same = ("--store", bare, "--captions", captions, "--captions", captions)
    assert (
        "8 captions of 16 come again word for word, of the same image"
        in roibeam("pretrain", tmp_path / "same", *same, *TINY_MODEL).err
    )


def test_captions_without_a_word_are_called_so(roibeam: Cli, stores: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, bare, captions = stores
    content = json.loads(captions.read_text())
    content["annotations"] = [{**row, "caption": " "} for row in content["annotations"]]
    (tmp_path / "empty.json").write_text(json.dumps(content))
    given = ("--store", bare, "--captions", tmp_path / "empty.json", "--tokenizer", "captions")
    line = one_line(roibeam("pretrain", tmp_path / "run", *given, *TINY_MODEL))
    assert (
        line == f"roibeam: {tmp_path / 'empty.json'}: all of its captions are empty; give captions with words in them"
    )
