"""Commands that need no torch import none, whatever is wrong with their arguments; and what --json prints, of every
command."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from forks import run_script
from json_lines import json_lines
from test_help import LEAVES
from tiny_commands import Pictures
from wrong_calls import (
    WrongCall,
    calls_with_unfit_files,
    calls_with_wrong_files,
    calls_with_wrong_names,
    make_wrong_files,
)

from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.published import RECIPES

Words = tuple[object, ...]


class Ran(NamedTuple):
    words: tuple[str, ...]
    code: int
    out: str
    err: str
    heavy: list[str]


PATHS = {tuple(path.split()): command for path, command in LEAVES.items()}
WITH_JSON = {path for path, each in PATHS.items() if any("--json" in parameter.opts for parameter in each.params)}


def right_calls(pictures: Pictures, folder: Path) -> list[Words]:
    """Of the commands that need no torch; each exits with 0."""
    photos, store = pictures.photos, pictures.store
    (folder / "urls.tsv").write_text("a caption\thttp://127.0.0.1:1/a.jpg\n")
    (folder / "held.txt").write_text("no-such-image\n")
    (folder / "nlvr2").mkdir()
    (folder / "nlvr2" / "dev.json").write_text('{"identifier": "dev-1-0-0", "sentence": "One dog.", "label": "True"}\n')
    (folder / "judged.csv").write_text("dev-1-0-0,True\n")
    calls: list[Words] = [
        ("progress", store),
        ("store", "info", store),
        ("store", "verify", store, "--deep"),
        ("store", "show", store),
        ("store", "ids", store),
        ("store", "dead-letters", store),
        ("store", "plan", store, "--ranks", 2),
        ("store", "copy", store, folder / "copy"),
        ("store", "repair", store),
        ("store", "repair", folder / "whole", "--photos", photos),
        ("store", "diff", store, store, "--html", folder / "diff.html", "--photos", photos),
        ("store", "export", store, folder / "features.tsv", "--format", "butd-tsv"),
        ("store", "import", folder / "features.tsv", folder / "imported"),
        ("leaks", photos, "--held-out", f"list={folder / 'held.txt'}"),
        ("download", folder / "urls.tsv", folder / "downloaded", "--attempts", 1),
        ("toyworld", folder / "world", "--num-images", 40, "--workers", 1),
        ("score", "nlvr2", folder / "judged.csv", "--data", folder / "nlvr2", "--against", folder / "judged.csv"),
        ("recipes",),
    ]
    return [(*call, "--json") for call in calls]


def wrong_calls(pictures: Pictures, folder: Path) -> list[tuple[Words, str]]:
    """Of every command, and words of its one line: a file that is not there, an unknown name, a number that is none,
    options that exclude each other, an output that is a file."""
    photos, captions, store = pictures
    gone, out, file = folder / "gone", folder / "new", folder / "urls.tsv"
    pretrain: Words = ("pretrain", out, "--store", store, "--captions", captions)
    extract: Words = ("extract", photos, out, "--detector", "small", "--weights", "random:1")
    return [
        (("extract", gone, out, "--weights", gone / "a", "--vocab", gone / "b"),
         f"SOURCE '{gone}', --weights '{gone / 'a'}', --vocab '{gone / 'b'}'"),
        ((*extract, "--selection", "butd-37"), "butd-37"),
        ((*extract, "--conventions", "nobody"), "nobody"),
        ((*extract, "--set", "detector.nothing=1"), "nothing"),
        ((*extract, "--precision", "fp8"), "fp8"),
        ((*extract, "--device", "tpu"), "tpu"),
        ((*extract, "--workers", "none"), "workers"),
        (("extract", photos, file, *extract[3:]), "is a file"),
        (("progress", gone), "plan.json"),
        (("download", gone, out), "gone"),
        ((*pretrain[:-1], gone, "--store-weight", 1), "--captions"),
        ((*pretrain, "--system", "nobody"), "choose one of vlbert"),
        ((*pretrain, "--model", "huge"), "choose one of tiny, small"),
        ((*pretrain, "--recipe", "nobody"), "no recipe"),
        ((*pretrain, "--from-run", gone, "--from-bert", gone), "starts from one of them"),
        ((*pretrain, "--photos", photos), "--end-to-end"),
        (("pretrain", file, *pretrain[2:]), "is a file"),
        (("finetune", out, "--task", "vqa", "--from", gone, "--store", gone / "s", "--data", gone / "d"),
         f"--data '{gone / 'd'}', --store '{gone / 's'}', --from '{gone}'"),
        (("finetune", out, "--task", "vqq", "--from", "none", "--store", store, "--data", folder), "did you mean vqa"),
        (("predict", gone, "--store", store, "--data", folder, "--out", out), f"RUN '{gone}'"),
        (("predict", folder / "trained", "--store", store, "--data", folder, "--out", out), "no run of roibeam"),
        (("recipes", "nobody"), "no recipe"),
        (("tables", "nobody"), "no table"),
        (("data", "check", "vqq", folder), "did you mean vqa"),
        (("score", "vqa", gone, "--data", gone / "d"), f"FILE '{gone}', --data '{gone / 'd'}'"),
        (("demo", file), "is a file"),
        (("collect", "run", gone, out), "gone"),
        (("collect", "run", photos, out), "no page in it"),
        (("collect", "train-images", gone, folder / "judge.json"), "gone"),
        (("collect", "train-pairs", folder / "judge.json", "--pairs", gone, "--pairs-store", gone), "gone"),
        (("evaluate", gone, "--store", store, "--captions", gone / "c.json"), f"'{gone}', --captions"),
        (("evaluate", folder, "--store", folder), "no feature store"),
        (("evaluate", folder, "--store", store, "--split", "val"), "--split"),
        (("evaluate", "--compare", gone, gone), "gone"),
        (("attention", gone, "--store", store, "--entities", gone / "e"), f"CHECKPOINT '{gone}', --entities"),
        (("probe", gone, gone / "a.jpg", "text", "--weights", gone), f"PHOTO '{gone / 'a.jpg'}', --weights '{gone}'"),
        (("probe", folder, "no-such-image", "text", "--store", store), "no record"),
        (("search", gone, "a dog", "--model", gone / "run"), f"STORE '{gone}', --model '{gone / 'run'}'"),
        (("search", store, "a dog", "--model", folder / "trained"), "is no configuration of a run"),
        (("search", store, "--region", "no-such-image:0"), "no image 'no-such-image'"),
        (("look", gone, "--weights", gone / "a"), f"PHOTO '{gone}', --weights '{gone / 'a'}'"),
        (("look", captions, "--out", folder / "b.txt"), ".png"),
        (("leaks", gone, "--held-out", f"list={folder / 'held.txt'}"), "gone"),
        (("conformance",), "python tests/conformance"),
        (("convert", gone, folder / "b.bin"), "gone"),
        (("convert", file, folder / "b.txt"), ".txt"),
        (("convert", file, folder / "b.txt", "--to", "official"), "rename it"),
        (("toyworld", file), "urls.tsv"),
        (("detector", "train", out, "--labels", gone, "--resnet", gone), "--labels"),
        (("detector", "train", out, "--labels", captions, "--detector", "huge"), "huge"),
        (("detector", "evaluate", "toy", "--labels", gone), "--labels"),
        (("detector", "evaluate", folder, "--labels", captions), "config.json"),
        (("store", "info", gone), "no feature store"),
        (("store", "show", store, "no-such-image"), "no-such-image"),
        (("store", "ids", gone), "no feature store"),
        (("store", "dead-letters", gone), "no feature store"),
        (("store", "verify", store, "--shards", "x"), "--shards"),
        (("store", "repair", store, "--weights", gone), "--photos"),
        (("store", "copy", gone, out), "no such file or folder: SOURCE"),
        (("store", "plan", store, "--ranks", 0), "ranks"),
        (("store", "diff", gone, store), "gone"),
        (("store", "import", gone, out), "gone"),
        (("store", "export", store, out, "--format", "none"), "none"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ran(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Ran]]:
    """All of it, in one process that had nothing of ours imported."""
    folder = tmp_path_factory.mktemp("light")
    shutil.copytree(pictures.store, folder / "whole")
    make_wrong_files(pictures, folder)
    calls: dict[str, list[Words]] = {
        "help": [("--version",), ("--report",), *((*path, "--help") for path in PATHS)],
        "right": right_calls(pictures, folder),
        "recipe": [("recipes", name, "--json") for name in (*RECIPES, *TASK_RECIPES)],
        "shown": [("recipes", "vlbert-paper"), ("recipes", "vlbert-vqa"), ("recipes",)],
        "wrong": [(*words, *["--json"] * _has_json(words)) for words, _ in wrong_calls(pictures, folder)],
        "wronger": [call.words for call in more_wrong_calls(pictures, folder)],
    }
    words = [[str(word) for word in call] for group in calls.values() for call in group]
    (folder / "commands.json").write_text(json.dumps(words), "utf-8")
    done = run_script(Path(__file__).parent / "light_commands.py", folder / "commands.json")
    assert done.returncode == 0, done.stderr
    each = iter(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))
    return {name: [Ran(tuple(call), **result) for call, result in (next(each) for _ in group)]
            for name, group in calls.items()}  # fmt: skip


def _path(words: Words) -> tuple[str, ...]:
    return tuple(map(str, words[: 2 if words[0] in ("store", "detector", "collect", "data") else 1]))


def _has_json(words: Words) -> bool:
    return _path(words) in WITH_JSON


def test_no_command_imports_torch_before_it_needs_it(ran: dict[str, list[Ran]]) -> None:
    """Each would take seconds and most of a gigabyte for it. The first that imports a package is named."""
    assert {call.words: call.heavy for group in ran.values() for call in group if call.heavy} == {}


def test_right_calls_are_right(ran: dict[str, list[Ran]]) -> None:
    failed = [call for group in ("help", "right", "recipe", "shown") for call in ran[group] if call.code != 0]
    assert failed == []
    for call in (*ran["right"], *ran["recipe"]):
        assert all(line["event"] != "error" for line in json_lines(call.out)) and call.out, call
    everything = json.loads(ran["right"][-1].out)
    one_by_one = {
        name: json.loads(call.out)[name] for name, call in zip((*RECIPES, *TASK_RECIPES), ran["recipe"], strict=True)
    }
    assert everything == {"event": "recipes", **one_by_one}


def test_a_failure_is_a_line_of_json_and_a_line_of_words(ran: dict[str, list[Ran]], pictures: Pictures) -> None:
    said = [said for _, said in wrong_calls(pictures, Path(ran["wrong"][0].words[2]).parent)]
    for call, words in zip(ran["wrong"], said, strict=True):
        assert call.code > 0 and call.err.startswith("roibeam: ") and call.err.count("\n") == 1, call
        assert words in call.err, call
        if _has_json(call.words):
            (error,) = json_lines(call.out)
            assert error["event"] == "error" and error["exit_code"] == call.code, call
            assert f"roibeam: {error['message']}\n" == call.err, call


def more_wrong_calls(pictures: Pictures, folder: Path) -> list[WrongCall]:
    calls = calls_with_wrong_names, calls_with_unfit_files, calls_with_wrong_files
    return [call for some in calls for call in some(pictures, folder)]


def test_a_wrong_call_is_told_the_mistake_and_the_cure_in_two_lines(
    ran: dict[str, list[Ran]], pictures: Pictures
) -> None:
    """The line before the last may say which detector was chosen."""
    folder = Path(ran["wrong"][0].words[2]).parent
    for call, wrong in zip(ran["wronger"], more_wrong_calls(pictures, folder), strict=True):
        assert wrong.says in call.err.splitlines()[-1] and call.code == wrong.code, call
        short = call.err.replace(str(folder), "tmp").replace(str(pictures.photos.parent), "tmp")
        assert short.count("\n") <= 2 and len(short) <= 420, (len(short), short)
        assert len(short.splitlines()[-1]) <= 330, (len(short), short)
    assert not (folder / "new").exists()  # where most of them would have written


def test_every_command_with_json_is_asked_for_it(ran: dict[str, list[Ran]]) -> None:
    """A new command needs a call that fails above; that the results of all are JSON, the fixture `roibeam` checks."""
    assert {_path(call.words) for call in ran["wrong"]} >= WITH_JSON
