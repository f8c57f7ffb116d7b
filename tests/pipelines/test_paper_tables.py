"""Tables of the papers by name: each figure is in one and has a command that measures it; the commands can be typed.

What they do when they run is tested by test_paper_table_run.py.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from glue_files import write_task
from tiny_commands import Cli, ok

from roibeam.pipelines.cli.commands import app
from roibeam.pipelines.cli.finetune import _printed
from roibeam.pipelines.cli.recipe_commands import (
    Command,
    chain_of,
    commands_of,
    need_lines,
    needs_of,
    printed_figures,
    source_of,
)
from roibeam.pipelines.cli.table_run import RUN_HERE, table_commands
from roibeam.pipelines.common.statistics.paper_figures import paper_figures, paper_tables
from roibeam.pipelines.finetuning.prediction_card import write_card
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.pretraining.recipes.published import RECIPES

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
EVERY = {**RECIPES, **TASK_RECIPES}


@pytest.fixture(scope="module")
def commands() -> dict[str, dict[str, Command]]:
    """By recipe and key."""
    return {name: {each.key: each for each in commands_of(name)} for name in EVERY}


def test_every_figure_is_in_a_table_and_reached_by_a_command(commands: dict[str, dict[str, Command]]) -> None:
    listed = {figure for each in paper_tables().values() for figure in each.figures}
    assert listed == set(paper_figures())
    averages = 0
    for figure in paper_figures():
        if figure.recipe:
            key, measure = source_of(figure)
            averages += not key
            assert not key or (key in commands[figure.recipe] and measure), figure
        else:
            assert figure.quoted or figure.why
    assert averages == 3  # of GLUE's tasks, whose cells they are made of


def test_tables_hold_what_the_papers_print_there() -> None:
    counts = {name: len(each.own) for name, each in paper_tables().items()}
    assert (counts["vilbert-1"], counts["vilbert-2"], counts["vilbert-3"]) == (44, 52, 52)
    assert counts["what-does-bert-with-vision-look-at-1"] == 4  # the four that stand in Tables 3 to 6 again
    assert not any(name.startswith("visualbert") for name in counts)
    row = [each.printed for each in paper_tables()["vlbert-3"].own]
    assert row == ["69.58", "70.50", "70.83"]


def test_what_a_command_names_is_there(commands: dict[str, dict[str, Command]]) -> None:
    """Splits that the task has; weights where no start brings them along; all photos that a recipe's words name."""
    for command in {each.key: each for made in commands.values() for each in made.values()}.values():
        words = command.words
        if words[0] == "score":
            assert words[words.index("--split") + 1] in SCORED_TASKS[words[1]].splits, command
        if words[0] in ("pretrain", "finetune") and "--end-to-end" in words:
            start = next((words[place + 1] for place, word in enumerate(words) if word in ("--from", "--from-run")), "")
            brings = start.startswith("RUNS/") and RECIPES[start.removeprefix("RUNS/")].end_to_end
            assert ("--weights" in words) != brings, command
    three = commands["imagebert-lait-cc-sbu"]["run imagebert-lait-cc-sbu"]
    assert three.words.count("--store") == 3
    assert "val" in commands["visualbert-task-flickr"]["RUNS/visualbert-task-flickr-attention"].words
    boxed = commands["visualbert-coco-vcr"]["run visualbert-coco-vcr"]
    assert boxed.words.count("--store") == 1  # end to end, a run reads one store
    made = commands["visualbert-coco-vcr"]
    parts = [made[need].words for need in made[boxed.needs[0]].needs]
    assert [words[words.index("--boxes") + 1][-14:-5] for words in parts] == ["train2014", "s_val2014"]


@pytest.mark.parametrize("name", [name for name, each in paper_tables().items() if any(one.recipe for one in each.own)])
def test_a_table_has_the_commands_that_its_cells_need_and_no_others(name: str) -> None:
    made = table_commands(paper_tables()[name])
    read = {source_of(each)[0] for each in paper_tables()[name].own if each.recipe}
    needed = {need for each in made.values() for need in each.needs}
    assert set(made) == (read | needed) - {""}
    row = paper_tables()[name].own[0].row
    assert set(table_commands(paper_tables()[name], [row])) <= set(made)


def test_commands_come_after_what_they_need_and_one_key_is_one_command(
    commands: dict[str, dict[str, Command]],
) -> None:
    words: dict[str, tuple[str, ...]] = {}
    for name, made in commands.items():
        before = set[str]()
        for each in (*made.values(), *commands_of(name, seed=1)):
            assert words.setdefault(each.key, each.words) == each.words
        for each in made.values():
            assert set(each.needs) <= before, (name, each)
            before.add(each.key)
        runs = [each.words[1] for each in made.values() if each.words[0] in ("pretrain", "finetune")]
        assert [run for run in runs if run in {f"RUNS/{link}" for link in chain_of(name)}] == [
            f"RUNS/{link}" for link in chain_of(name) if f"RUNS/{link}" in runs
        ]


def test_each_command_is_one_that_roibeam_takes(commands: dict[str, dict[str, Command]]) -> None:
    group: Any = typer.main.get_command(app)
    root = group.make_context("roibeam", [], resilient_parsing=True)
    typed = {each.words for made in commands.values() for each in made.values()}
    kinds = Counter(words[0] for words in typed)
    assert set(kinds) == {"download", "extract", "store", *RUN_HERE}
    for name, *words in typed:
        command, parent = group.get_command(root, name), root
        if name == "store":
            parent, (name, *words) = command.make_context(name, [], parent=root, resilient_parsing=True), words
            command = command.get_command(parent, name)
        with command.make_context(name, words, parent=parent) as context:
            assert context.params, words


def test_one_submission_has_both_problems_of_vcr(commands: dict[str, dict[str, Command]]) -> None:
    answer, rationale = commands["vlbert-vcr-answer-large"], commands["vlbert-vcr-rationale-large"]
    (predicted,) = [each for each in answer.values() if each.words[0] == "predict" and "test" in each.words]
    assert predicted.words[1:3] == ("RUNS/vlbert-vcr-answer-large", "RUNS/vlbert-vcr-rationale-large")
    assert rationale[predicted.key] == predicted
    assert "--check" in answer[f"score of {predicted.key}"].words


def test_coco_has_a_run_of_its_own_and_its_first_thousand_a_score(commands: dict[str, dict[str, Command]]) -> None:
    made = commands["imagebert-retrieval"]
    assert made["run imagebert-retrieval-coco"].words[-4:] == (
        "--data", "DATA/coco", "--store", "STORES/coco-pythia-x152-fpn",
    )  # fmt: skip
    both = [each.words for each in made.values() if each.words[0] == "score" and "DATA/coco" in each.words]
    assert len(both) == 2 and both[1][-2:] == ("--rules", "five-folds")
    assert printed_figures("imagebert-retrieval", "test", in_folds=True)["image R@1"][0].printed == "73.6"


@pytest.mark.parametrize("name", ["vilbert-vqa-2-layer", "interbert"])
def test_recipes_prints_the_commands(roibeam: Cli, name: str) -> None:
    lines = ok(roibeam("recipes", name, "--commands")).out.splitlines()
    assert [line for line in lines if line[0] != "#"] == [str(each) for each in commands_of(name)]
    assert "#   conceptual-captions: Conceptual Captions, Google: 3,318,333 captions" in "\n".join(lines)


def test_the_dry_run_says_what_is_there_and_what_it_takes(roibeam: Cli, tmp_path: Path) -> None:
    """Of each file by its name: an empty folder or file is none."""
    annotations, questions = "v2_mscoco_train2014_annotations.json", "v2_OpenEnded_mscoco_train2014_questions.json"
    (tmp_path / "vqa" / "inside").mkdir(parents=True)
    (tmp_path / "vqa" / "inside" / annotations).write_text("{}")
    (tmp_path / "vqa" / questions).touch()
    (tmp_path / "coco" / "train2014").mkdir(parents=True)
    (tmp_path / "coco" / "train2014" / "a.jpg").write_bytes(b"a")
    (tmp_path / "coco-butd-10-100").mkdir()
    (tmp_path / "coco-butd-10-100" / "manifest.json").write_text("{}")
    lines = ok(roibeam("tables", "vilbert-2", "--dry-run", "--data", tmp_path, "--stores", tmp_path)).out.splitlines()
    for line in (
        f"#     there    vqa/{annotations}", f"#     missing  vqa/{questions}", "#     missing  vcr/train.jsonl",
        "#     there    coco/train2014/*.jpg", "#     missing  coco/val2014/*.jpg",
        "#     missing  flickr30k/dataset_flickr30k.json", "#     missing  refcoco+/refs(unc).p",
    ):  # fmt: skip
        assert line in lines, line
    assert [line for line in lines if "conceptual-captions-vilbert: at most" in line] == [
        "#   missing  conceptual-captions-vilbert: at most 814.457 GB, 3,100,000 photos of up to 36 regions"
    ]
    assert any(line.startswith("#   there    coco-butd-10-100: ") for line in lines)
    assert any(re.fullmatch(r"#   RUNS/vilbert-vqa: [\d.]+ on one NVIDIA H200", line) for line in lines)
    assert "#   RUNS/vilbert: not measured" in lines


def test_all_files_that_commands_name_are_among_the_needs(commands: dict[str, dict[str, Command]]) -> None:
    """A word in front of the path, as in resnet152=DATA/weights/resnet152.pth, does not hide it."""
    for name, made in commands.items():
        every = list(made.values())
        needs, lines = needs_of(every), "\n".join(need_lines(every, {}))
        named = {found[1] for each in every for word in each.words if (found := re.search("DATA/(.*)", word))}
        written = {each.words[2].removeprefix("DATA/") for each in every if each.words[0] == "download"}
        for file in named:
            assert any(need.name.startswith(file.rstrip("/")) for need in needs) or file.partition("/photos")[0] in {
                each.partition("/photos")[0] for each in written
            }, (name, file)
        assert ("detectron2" in lines) == any(
            {"pythia-x152-fpn", "mask-rcnn-r101-fpn"} & {*each.words} for each in every
        )
        weights = [need.name.partition("/")[2].rpartition(".")[0] for need in needs if need.name.startswith("weights/")]
        assert all(f"{each}, " in lines or f"{each}: " in lines for each in weights), name
        assert "0.000 MB" not in lines and len(needs) == len({each[:2] for each in needs})
    assert "weights/resnet152.pth" in {need.name for need in needs_of(commands["imagebert-cc-sbu-global"].values())}


@pytest.mark.parametrize(
    "asked, names",
    [
        (("--figure", "71.79"), ["vlbert-vqa-large"]),
        (("--task", "vqa", "--system", "visualbert"), [
            "visualbert-vqa", "visualbert-vqa-without-coco", "visualbert-vqa-late-fusion", "visualbert-vqa-text-only",
        ]),
        (("--paper", "imagebert", "--task", "pretraining", "--search", "LAIT"), [
            "imagebert-stage-1", "imagebert-lait-cc-sbu",
        ]),
        (("--task", "VQA", "--system", "VisualBERT", "--figure", "70.8"), ["visualbert-vqa"]),
        (("--paper", "What Does BERT with Vision Look At?", "--task", "vqa", "--figure", "70.80"), ["visualbert-vqa"]),
        (("--paper", "what does", "--task", "vqa", "--search", "late"), ["visualbert-vqa-late-fusion"]),
        (("--figure", "55"), ["vlbert-paper", "vlbert-vcr-answer-paper"]),
        (("--figure", "10-1"), ["visualbert-task-flickr"]),
    ],
)  # fmt: skip
def test_recipes_are_filtered(roibeam: Cli, asked: tuple[str, ...], names: list[str]) -> None:
    lines = ok(roibeam("recipes", *asked)).out.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(names)


@pytest.mark.parametrize(
    "words, message",
    [
        (("tables", "vilbert-22"), "no table 'vilbert-22': did you mean vilbert-2"),
        (("tables", "--out", "x"), "name the table to make"),
        (("tables", "vilbert-2", "--out", "x"), "--data and --stores are needed"),
        (("tables", "vilbert-2", "--dry-run", "--only", "ViLBERT (3-layer)"), "has no row 'ViLBERT (3-layer)'"),
        (("tables", "vilbert-2", "--out", "x", "--data", ".", "--stores", ".", "--part", "3/2"), "--part '3/2'"),
        (("recipes", "--commands"), "--commands is of one recipe"),
        (("recipes", "--task", "vqq"), "no recipe fits --task 'vqq': did you mean vqa"),
        (("recipes", "--system", "vilbart"), "did you mean vilbert"),
        (("recipes", "--paper", "ViLBART"), "did you mean ViLBERT"),
        (("recipes", "--figure", "12345"), "no recipe fits --figure '12345'"),
        (("recipes", "--paper", "ViLBERT", "--figure", "71.79"), "'71.79' fits 1 recipe, but none of them the other"),
        (("recipes", "vlbert-vqa", "--data", "."), "--data and --stores are for --commands"),
        (("recipes", "vlbert-vqa", "--commands", "--data", "nowhere"), "no such file or folder: --data 'nowhere'"),
        (("tables", "vilbert-2", "--dry-run", "--data", PAGE), "is a file; name a folder"),
        (("tables", "vilbert-2", "--dry-run", "--jobs", "2", "--scored", "x"), "--scored, --jobs would have no effect"),
        (("tables", "visualbert-2"), "did you mean what-does-bert-with-vision-look-at-2?"),
        (("score", "vqa", "a.json", "--data", ".", "--recipe", "vilbert-vcr"), "is of the task vcr, not vqa"),
    ],
)
def test_a_wrong_call_gets_one_line(roibeam: Cli, words: tuple[str, ...], message: str) -> None:
    result = roibeam(*words)
    assert result.code and message in result.err and len(result.err.splitlines()) == 1


def test_a_score_has_the_printed_figure_beside(roibeam: Cli, tmp_path: Path) -> None:
    write_task(tmp_path, "rte")
    (tmp_path / "RTE.tsv").write_text("index\tprediction\n" + "".join(f"{row}\tentailment\n" for row in range(8)))
    asked, of_recipe = ("score", "rte", tmp_path / "RTE.tsv", "--data", tmp_path), ("--recipe", "interbert-rte")
    beside = "accuracy: 64.3 (GLUE RTE, accuracy, dev; Table 3); ours less it -14.30"
    assert beside in ok(roibeam(*asked, *of_recipe)).out
    told = json.loads(ok(roibeam(*asked, *of_recipe, "--json")).out)
    assert told["printed"][0] == "printed, of the recipe interbert-rte, dev:"
    for toy in (True, False):  # the predictions' card names the recipe
        model = {"recipe": "interbert-rte", "toy": toy}
        write_card(tmp_path / "RTE.tsv", {"task": "rte", "split": "dev", "model": model})
        assert (beside in ok(roibeam(*asked)).out) != toy


@pytest.mark.parametrize("name, has", [("vlbert-3", True), ("vlbert-4", False), ("imagebert-2", False)])
def test_only_test_questions_of_vqa_need_test2015(roibeam: Cli, name: str, has: bool) -> None:
    assert ("coco/test2015" in ok(roibeam("tables", name, "--dry-run")).out) == has


def test_figures_of_another_rule_or_data_set_are_not_subtracted() -> None:
    ours, card = {"accuracy": 10.0, "image R@1": 70.0}, {"rules": "strict", "task": "refcoco+", "labels": {}}
    lines = _printed("vilbert-refcoco+-detected", ours, "val", card)
    assert lines[1].endswith("; the recipe counts by --rules vilbert")
    assert "ours less it" in _printed("vilbert-refcoco+-detected", ours, "val", {**card, "rules": "vilbert"})[1]
    for name, less in (("flickr30k", "ours less it -3.10"), ("coco", "ours less it +19.50")):
        card = {"rules": "strict", "task": "retrieval", "labels": {f"data/dataset_{name}.json": ""}}
        (line,) = (each for each in _printed("imagebert-retrieval", ours, "test", card) if "image R@1:" in each)
        assert line.endswith(less), line


@pytest.mark.parametrize(
    "name, words",
    [
        ("vlbert-paper", "# measured by roibeam recipes vlbert-vcr-answer-paper --commands: 73.7 (VCR, Q->A, val)"),
        (
            "interbert-single-stream",
            "# the mean of the row's tasks in roibeam tables, Table 3, --only 'Single Stream': 80.0",
        ),
        ("interbert", "# the mean of the row's tasks in roibeam tables, Table 3, --only 'InterBERT': 81.8"),
    ],
)
def test_a_recipe_names_who_measures_its_figures(roibeam: Cli, name: str, words: str) -> None:
    assert words in ok(roibeam("recipes", name, "--commands")).out


def test_a_checked_submission_has_the_printed_figure_beside(roibeam: Cli, tmp_path: Path) -> None:
    """Of VCR those of both problems, which one file answers."""
    name = "v2_OpenEnded_mscoco_test-dev2015_questions.json"
    asked = [{"question_id": number, "image_id": 7, "question": "what?"} for number in range(3)]
    (tmp_path / name).write_text(json.dumps({"questions": asked}))
    (tmp_path / "a.json").write_text(json.dumps([{"question_id": number, "answer": "a"} for number in range(3)]))
    called = ("score", "vqa", tmp_path / "a.json", "--data", tmp_path, "--split", "test-dev", "--check", "--recipe")
    lines = ok(roibeam(*called, "vlbert-vqa-large")).out.splitlines()
    assert "complete, one row" in lines[0] and lines[2].startswith("  overall: 71.79 (VQA, accuracy, test-dev; ")
    assert lines[2].endswith(", from the test server")
    assert ok(roibeam(*called, "visualbert-vqa-text-only")).out.splitlines()[1].endswith(": no figure")
    both = printed_figures("vlbert-vcr-answer-large", "val")
    assert [one.printed for each in ("Q->A", "QA->R", "Q->AR") for one in both[each]] == ["75.5", "77.9", "58.9"]
    assert both == printed_figures("vlbert-vcr-rationale-large", "val")


def test_the_page_lists_all_tables(roibeam: Cli) -> None:
    section = PAGE.read_text("utf-8").partition("## The tables\n")[2]
    assert re.findall("`([^` *]+)`[,| ]", section.partition("|---|---|\n")[2]) == list(paper_tables())
    told = json.loads(ok(roibeam("tables", "vilbert-2", "--json")).out)
    assert [each["printed"] for each in told["vilbert-2"]["figures"]][:1] == ["70.55"]
