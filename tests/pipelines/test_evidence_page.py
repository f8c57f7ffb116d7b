"""Claims, their verdicts, and docs/evidence.md, from made answers of which the truth is known."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from doc_pages import Page
from evidence.report import claims, own_tables, page, plots, recipe_table, standing, tables, task_tables
from evidence.report import intervals as statistics
from evidence.runs import ALL_ARMS

from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES

REPOSITORY = Path(__file__).parents[2]
PICTURES, ASKED, SIZES = 200, 4, SimpleNamespace(test=200, train=20000)


@dataclass(frozen=True)
class Bound:
    floor: float | None
    ceiling: float | None
    how: str = "counted"


BOUNDS = {"matching": Bound(0.5, 0.9), "words true": Bound(0.3, 0.95), "text_to_image_r10": Bound(0.05, 0.8)}


# --- intervals ---


def counts(rates: list[float], *, pictures: int = 400, asked: int = 2) -> Any:
    """A run for each rate, so many of each picture's questions right."""
    random = np.random.default_rng(0)
    right = np.stack([random.binomial(asked, rate, pictures) for rate in rates])
    return statistics.Counts(tuple(range(len(rates))), right, np.full_like(right, asked))


def test_a_difference_counts_when_seeds_and_pictures_agree() -> None:
    better, worse = counts([0.6, 0.62, 0.61]), counts([0.5, 0.49, 0.51])
    found = statistics.difference(better, worse)
    assert found.low > 0 and found.seeds == 3 and abs(found.value - 0.11) < 0.03
    assert statistics.difference(worse, better).high < 0
    same = statistics.difference(better, better)
    assert (same.value, same.low, same.high, same.over_runs) == (0, 0, 0, (0, 0))
    # What one seed has and the others have not is no finding.
    odd = statistics.difference(counts([0.9, 0.5, 0.5]), counts([0.5, 0.5, 0.5]))
    assert odd.low <= 0


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(40):
        right = random.binomial(1, 0.3, (1, 300))
        found = statistics.share(statistics.Counts((0,), right, np.ones_like(right)))
        held += found.low <= 0.3 <= found.high
    assert held >= 34  # 95 % of 40 are 38


def test_runs_that_differ_alone_seldom_leave_zero_out() -> None:
    """Three runs a side of like quality: the bootstrap is too sure of them, Student's t over runs is not."""
    random, bootstrap, over_runs = np.random.default_rng(2), 0, 0
    for _ in range(100):
        sides = []
        for _ in range(2):
            right = random.binomial(20, np.repeat(random.uniform(0.3, 0.7, 3)[:, None], 100, axis=1))
            sides.append(statistics.Counts((0, 1, 2), right, np.full_like(right, 20)))
        found = statistics.difference(*sides)
        bootstrap += found.low > 0 or found.high < 0
        over_runs += found.over_runs[0] > 0 or found.over_runs[1] < 0
    assert over_runs <= 12 < bootstrap  # 5 of 100 are meant
    one = statistics.difference(sides[0].of([0]), sides[1].of([0]))
    assert one.over_runs is None


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    three = counts([0.5, 0.6, 0.7])
    one = three.of([2])
    assert one.seeds == (2,) and (one.right == three.right[2:]).all()
    found = statistics.difference(three, one)
    assert found.seeds == 1 and found.value == 0
    assert statistics.difference(three.of([0]), one) is None


def test_a_share_is_compared_with_a_known_one() -> None:
    half, more = counts([0.5, 0.5]), counts([0.6, 0.6])
    assert statistics.difference(more, 0.5).low > 0
    found = statistics.difference(half, 0.5)
    assert found.low < 0 < found.high and found.seeds == 2


# --- claims ---

ROW = {
    "id": "vlbert-some", "paper": "VL-BERT", "place": "Table 4", "short": "some: words", "sentence": "It helps.",
    "first_arm": "perfect/vlbert-a", "first_question": "words true", "second_arm": "perfect/vlbert-b",
    "second_question": "words true", "expected": "more",
}  # fmt: skip


def written(path: Path, *rows: Mapping[str, str]) -> Path:
    """A table of claims, each `ROW` but for what is given."""
    made = [claims.Claim(**{**ROW, "id": f"row-{number}", **row}) for number, row in enumerate(rows)]
    claims.write_claims(path, [claims.Judged(claim, None) for claim in made])
    return path


def test_our_own_claims_can_be_read_and_cite_a_place() -> None:
    ours = claims.read_claims(page.CLAIMS)
    assert {claim.paper for claim in ours} == set(claims.PAPERS)
    known = {**tables.QUESTIONS, **task_tables.NAMES, **own_tables.NAMES}
    claims.check_names(page.CLAIMS, ours, arms=ALL_ARMS, questions=known)
    placed = [claim for claim in ours if not claim.place.startswith("no claim of the paper")]
    assert all(any(word in claim.place for word in ("Table", "Section", "Figure")) for claim in placed)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "row-0"}, "line 3 (row-0): an earlier row has the same id"),
        ({"place": " "}, "place: nothing is written there"),
        ({"paper": "VilBERT"}, "paper 'VilBERT' is unknown; did you mean ViLBERT"),
        ({"expected": "most"}, "choose one of more, less, alike, no more"),
        ({"short": "x" * 47}, "short has 47 letters"),
        ({"sentence": "so " * 41}, "sentence has 41 words"),
        ({"first_arm": "floor"}, "can only be second"),
        ({"second_arm": "perfect/vlbert-a"}, "both sides are the same"),
    ],
)
def test_a_mistake_in_a_row_is_one_line(tmp_path: Path, row: dict[str, str], said: str) -> None:
    path = written(tmp_path / "claims.tsv", {}, row)
    with pytest.raises(ValueError) as raised:
        claims.read_claims(path)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_names_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "claims.tsv", {})
    for second, question, words in (
        ("c", "words true", r"line 2 \(row-0\): second_arm 'perfect/vlbert-b' is unknown; did you mean"),
        ("b", "words", "first_question 'words true' is unknown"),
    ):
        arms = ["perfect/vlbert-a", f"perfect/vlbert-{second}"]
        with pytest.raises(ValueError, match=words):
            claims.check_names(path, claims.read_claims(path), arms=arms, questions=[question])


@pytest.mark.parametrize("change", [lambda text: text.replace("sentence\t", "", 1), lambda text: text + "one\ttwo\n"])
def test_another_table_is_refused(tmp_path: Path, change: Any) -> None:
    path = written(tmp_path / "claims.tsv", {})
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=r"its columns must be|cells expected, 2 found"):
        claims.read_claims(path)


@pytest.mark.parametrize(
    ("expected", "low", "high", "verdict"),
    [
        ("more", 0.1, 4, "shown"), ("more", -0.1, 4, "not shown"), ("more", -4, -0.1, "the other way"),
        ("less", -4, -0.1, "shown"), ("less", -4, 0.1, "not shown"), ("less", 0.1, 4, "the other way"),
        ("alike", -1.9, 0.5, "shown"), ("alike", 0.1, 1.9, "shown"),  # a difference, but too small to matter
        ("alike", -0.5, 2.1, "not shown"), ("alike", 0.1, 2.1, "the other way"),
        ("no more", -9, 1.9, "shown"), ("no more", -0.1, 2.1, "not shown"), ("no more", 0.1, 2.1, "the other way"),
    ],
)  # fmt: skip
def test_verdicts(expected: str, low: float, high: float, verdict: str) -> None:
    claim = claims.Claim(**{**ROW, "expected": expected})
    found = found_of((low + high) / 2, (low, high), (low, high))
    assert claims.Judged(claim, found).verdict == verdict
    hint = {"shown": "hint", "the other way": "hint against"}.get(verdict, verdict)
    assert claims.Judged(claim, replace(found, runs_low=-9.0, runs_high=9.0)).verdict == hint
    assert claims.Judged(claim, replace(found, runs_low=None, runs_high=None, seeds=1)).verdict == hint


def found_of(
    difference: float, pictures: tuple[float, float], runs: tuple[float, float] | None = None, *, seeds: int = 3
) -> Any:
    """Half of the second side's questions are right; over runs the interval is the same unless it is given."""
    return claims.Found(50 + difference, 50, difference, *pictures, *(runs or pictures), seeds)


# --- the page ---


def make_results(folder: Path, arms: Mapping[str, Mapping[str, float]], *, seeds: int = 3) -> dict[str, str]:
    """Runs of these arms, which get such shares of their questions right; the commands of the arms."""
    random = np.random.default_rng(0)
    for arm, shares in arms.items():
        store, name = arm.split("/")
        (folder / store).mkdir(parents=True, exist_ok=True)
        for seed in range(seeds):
            tallies = {
                question: {"right": random.binomial(ASKED, share, PICTURES).tolist(), "asked": [ASKED] * PICTURES}
                for question, share in shares.items()
            }
            curve = {"steps": [100, 200, 300, 400], "masked_word_accuracy": [0.1, 0.2, 0.3, 0.35]}
            told = {"store": store, "arm": name, "seed": seed, "command": f"roibeam {arm}"}
            told |= {"steps": 400, "seconds": 60.5}
            path = folder / store / f"{name}-{seed}.json"
            path.write_text(json.dumps({**told, "curve": curve, "tallies": tallies}))
    return {arm: f"roibeam {arm}" for arm in arms}


def page_of(results: Path, out: Path, commands: Mapping[str, str], table: Path, **changes: Any) -> str:
    """The page made from these results, with its plots beside it in `out`."""
    given: dict[str, Any] = {"bounds": BOUNDS, "sizes": SIZES, "quick": False, **changes}
    return page.write_page(results, out / "evidence.md", commands=commands, table=table, **given).read_text("utf-8")


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    """A long table of the page in this folder."""
    with (folder / "evidence" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ARMS = {
    "perfect/visualbert": {"words true": 0.7, "words wrong": 0.3, "matching": 0.6, "matching beside": 0.9},
    "perfect/visualbert-permuted": {"words true": 0, "words wrong": 0, "matching": 0.5},
    "perfect/visualbert-longer": {"words true": 0.9, "matching beside": 0.9},
    "perfect/text-only": {"words alone": 0.3},
    "perfect/vilbert-1k": {"words true": 0.4, "matching": 0.5, "text_to_image_r10": 0.1},
    "perfect/vilbert-base": {"words true": 0.6, "matching": 0.8, "text_to_image_r10": 0.4},
    "detector/vlbert": {"words true": 0.5, "words wrong": 0.4, "matching": 0.55},
}  # fmt: skip
VISUALBERT = {"paper": "VisualBERT", "first_arm": "perfect/visualbert", "second_arm": "perfect/visualbert"}
CLAIMS: list[dict[str, str]] = [
    {**VISUALBERT, "second_question": "words wrong", "remark": "as it should, | or so"},
    {**VISUALBERT, "second_question": "words wrong", "expected": "less", "short": "no picture: words"},
    {**VISUALBERT, "first_question": "matching beside", "second_arm": "floor", "second_question": "matching"},
    {**VISUALBERT, "first_arm": "perfect/visualbert-permuted", "second_arm": "perfect/visualbert-permuted",
     "second_question": "words wrong", "expected": "alike"},
    {"paper": "ViLBERT", "first_arm": "perfect/vilbert-base", "second_arm": "perfect/vilbert-1k"},
    {"paper": "VL-BERT", "first_arm": "detector/vlbert", "second_arm": "detector/vlbert-later"},
    {"paper": "VL-BERT", "first_arm": "detector/vlbert", "second_arm": "perfect/text-only"},
]  # fmt: skip


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page of some runs, and its folder."""
    folder = tmp_path_factory.mktemp("evidence")
    commands = make_results(folder / "results", ARMS)
    (folder / "results" / "perfect" / "text-only-1.json").write_text(
        json.dumps({"store": "perfect", "arm": "text-only", "seed": 1, "command": "of an earlier arm", "tallies": {}})
    )
    commands |= {"detector/vlbert-later": "roibeam later"}
    path = written(folder / "claims.tsv", *CLAIMS)
    text = page_of(folder / "results", folder, commands, path)
    return SimpleNamespace(folder=folder, text=text, claims=path, commands=commands)


def test_claims_get_their_verdicts_and_keep_what_people_wrote(full: Any, tmp_path: Path) -> None:
    head, *rows = [line.split("\t") for line in full.claims.read_text("utf-8").splitlines()]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    verdicts = ["shown", "the other way", "shown", "shown", "shown", "not run", "not run"]
    assert [row["verdict"] for row in found] == verdicts
    assert 36 < float(found[0]["difference"]) < 44 and found[0]["seeds"] == "3"
    assert float(found[0]["low"]) < float(found[0]["difference"]) < float(found[0]["high"])
    assert found[2]["second"] == "50.0" and found[5]["difference"] == ""
    before = claims.read_claims(written(tmp_path / "claims.tsv", *CLAIMS))
    assert claims.read_claims(full.claims) == before and before[0].remark == "as it should, | or so"


def test_the_page_tells_what_was_found(full: Any) -> None:
    first = full.text[: full.text.index("## ")]
    assert "- **VisualBERT**, 4 comparisons of 1 sentence. 3 are shown; 1 goes the other way.\n" in first
    assert "- **VL-BERT**: nothing was run yet.\n" in first
    assert "**5 comparisons test a sentence of a paper: 4 are shown; 1 goes the other way.**" in first
    assert "with its own picture than with another one: of 1 comparison 1 is shown; the difference is +" in first
    reached = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:3] for line in first.splitlines()}
    assert [len(cell) for cell in reached["VisualBERT"]] == [2, 2] and reached["a perfect reader"] == ["95", "90"]
    assert full.text.count("![Claims of ") == 5
    rows = {(row["regions"], row["system"]): row for row in rows_of(full.folder, "matching")}
    asked_alone = rows["perfect regions", "VisualBERT, one caption"]
    assert 55 < float(asked_alone["right_low"]) < float(asked_alone["right"]) < float(asked_alone["right_high"]) < 65
    assert rows["regions of the toy detector", "VL-BERT"]["ceiling"] == "90.0"
    assert "1 of 7 arms have fewer than 3 runs" in full.text
    # Seeds 0 and 2 of text-only: the run of another command is not read.
    (run,) = [row for row in rows_of(full.folder, "runs") if row["arm"] == "perfect/text-only"]
    assert (run["seeds"], run["steps"], run["last_quarter_words"]) == ("0, 2", "400", "+5.0")
    (remark,) = {row["remark"] for row in rows_of(full.folder, "claims")} - {""}
    assert remark == "as it should, | or so"
    for words in (
        "Arms without a run: detector/vlbert-later.", "Further seeds of 1 arms: [further_seeds.csv](",
        "for three systems. Found: VisualBERT 89 % (beside a caption", "Claims that wait for them: row-5.",
        "none of both with the question or the floor: row-6.", "- *no picture: words*: *the other way*, +",
        "\n| in part | It helps. | 3 |  |  | 1 | +", "\n| not run | It helps. |",
    ):  # fmt: skip
        assert words in full.text


def test_a_run_of_twice_the_steps_stands_beside_the_run_of_the_same_seed(full: Any) -> None:
    once, twice = rows_of(full.folder, "twice_the_steps")  # none of ImageBERT, without such a run
    words = json.loads((full.folder / "results" / "perfect" / "visualbert-0.json").read_text())["tallies"]["words true"]
    right = f"{100 * sum(words['right']) / sum(words['asked']):.1f}"
    assert once["hidden_words"] == right  # seed 0 alone, not the mean of three
    assert float(twice["hidden_words"]) > 85 and once["r1"] == "" and once["last_quarter_words"] == "+5.0"


def test_sentences_of_the_page_are_short(full: Any) -> None:
    assert Page(full.text).long_sentences(40) == []


def test_plots_show_claims_of_papers_that_compare_trainings_as_text(full: Any) -> None:
    plots = {path.stem: path.read_text("utf-8") for path in full.folder.glob("*.svg")}
    assert len(plots) == 5
    assert ">some<" in plots["evidence_vilbert"] and ">1 of 1 shown<" in plots["evidence_vilbert"]
    assert ">some<" not in plots["evidence_vlbert"]  # none of its claims was run
    # Own picture against another is no second training.
    assert ">no picture<" not in plots["evidence_visualbert"]
    assert "more training pictures" in plots["evidence_vilbert"] and "training pictures" not in plots["evidence_vlbert"]
    assert all("prefers-color-scheme: dark" in text and 'viewBox="0 0 360 ' in text for text in plots.values())


def test_less_as_expected_is_drawn_to_the_right_with_a_bar_for_each_comparison() -> None:
    less = claims.Judged(claims.Claim(**{**ROW, "expected": "less"}), found_of(-2.0, (-3.0, -1.0)))
    one = claims.Judged(claims.Claim(**ROW), replace(found_of(80.0, (79.0, 81.0), seeds=1), runs_low=None))
    drawn = plots.claims_plot("title", {"some": [less, less], "other": [one]})
    assert ">2 of 2 shown<" in drawn and ">0 of 1 shown<" in drawn and drawn.count("stroke-dasharray") == 1
    marks = drawn.split('circle cx="')[1:]
    places = [float(part.split('"')[0]) for part in marks]
    assert min(places[-3:]) > 180 and max(places) <= 360 and places[-1] > 300
    filled = [part.split("fill: ")[1].split(";")[0] for part in marks[-3:]]
    assert filled == ["var(--series-2)", "var(--series-2)", "var(--page)"]  # a hint is hollow


def test_a_page_of_no_runs_says_so(full: Any, tmp_path: Path) -> None:
    table = Path(shutil.copy(full.claims, tmp_path / "claims.tsv"))
    text = page_of(tmp_path / "none", tmp_path / "docs", full.commands, table, bounds={})
    assert "**No runs yet.**" in text and "perfect/visualbert-permuted" in text
    assert [row.split("\t")[-2] for row in table.read_text("utf-8").splitlines()[1:]] == ["not run"] * 7


def test_a_quick_page_leaves_the_claims_alone(full: Any, tmp_path: Path) -> None:
    """Its few small runs may not be among the claims' arms, and say nothing of them."""
    table = written(tmp_path / "claims.tsv", {"first_arm": "perfect/not-quick"}, *CLAIMS)
    before = table.read_bytes()
    text = page_of(full.folder / "results", tmp_path, full.commands, table, quick=True)
    assert table.read_bytes() == before and "quick run" in text


OWN = {
    "perfect/imagebert": {"text_to_image_r1": 0.3, "image_to_text_r1": 0.3},
    **{
        f"tasks-perfect/retrieval-imagebert-{loss}-{negatives}": {
            "text_to_image_r1": share, "image_to_text_r1": share, "text_to_image_r10": 0.6, "image_to_text_r10": 0.6,
        }
        for loss, negatives, share in (("binary", "hard", 0.5), ("binary", "random", 0.3), ("triplet", "hard", 0.4))
    },
    "tasks-perfect/phrases-visualbert": {"phrases": 0.9, "phrases covered": 0.98},
    "heads-perfect/visualbert": {
        "phrases best head": 0.7, "phrases any word": 0.5, "phrases strongest region": 0.2,
        **{f"phrases layer {layer}": 0.2 * layer for layer in (1, 2, 3)}, "amod best head": 0.4,
        "amod strongest region": 0.2,
    },
    "heads-perfect/visualbert-new": {"phrases best head": 0.2, "phrases strongest region": 0.2, "phrases layer 1": 0.2},
    "tasks-perfect/rte-interbert": {"rte": 0.8},
    "tasks-perfect/rte-text-only": {"rte": 0.7},
}  # fmt: skip


def test_what_is_learned_of_the_same_pictures_stands_beside_what_was_known(tmp_path: Path) -> None:
    commands = make_results(tmp_path / "results", OWN)
    bounds = {"text_to_image_r10": Bound(0.05, 0.8), "rte": Bound(0.6, 1.0)}
    text = page_of(tmp_path / "results", tmp_path, commands, written(tmp_path / "claims.tsv"), bounds=bounds)

    def near(cell: str, percent: float) -> bool:
        return abs(float(cell) - percent) < 4

    (learned,) = rows_of(tmp_path, "retrieval")
    assert near(learned["text_to_image_r1"], 50) and near(learned["text_to_image_r1_gain_over_zero_shot"], 20)
    assert near(learned["text_to_image_r10_as_a_share_of_the_ceiling"], 75)  # 60 of 80
    binary, triplet = rows_of(tmp_path, "retrieval_losses")
    gain, against = "text_to_image_hard_minus_random", "text_to_image_hard_minus_each_pair_by_itself_hard"
    assert near(binary[gain], 20) and binary[against] == "" and near(triplet[against], -10) and triplet[gain] == ""
    assert near(rows_of(tmp_path, "relations")[0]["perfect_regions_gain_over_baseline"], 20)
    assert near(rows_of(tmp_path, "texts")[0]["interbert_minus_words_alone"], 10)
    (phrases,), (heads,) = rows_of(tmp_path, "phrases"), rows_of(tmp_path, "heads")
    assert near(phrases["r1_gain_over_baseline"], 70)
    assert near(heads["gain_over_baseline"], 50) and near(heads["gain_over_any_word"], 20)
    layers = heads["best_head_of_each_layer"].split(", ")
    assert [near(each, 20 * number) for number, each in enumerate(layers, 1)] == [True] * 3
    drawn = (tmp_path / "evidence_heads.svg").read_text("utf-8")
    assert "perfect regions, untrained" in drawn and "detector" not in drawn
    assert Page(text).long_sentences(40) == []


def test_a_papers_sentence_names_what_differs_most() -> None:
    sentence = standing.paper_sentence

    def judged(name: str, difference: float, **changed: str) -> Any:
        claim = claims.Claim(**{**ROW, "expected": "less", "short": name, "id": name, **changed})
        return claims.Judged(claim, found_of(difference, (difference - 1, difference + 1)))

    against, most, shown = judged("five words are in here", 10), judged("most", 20), judged("as expected", -20)
    ours = judged("ours", 40, place=claims.CONTROL)
    told = "1 is shown, most of all *as expected* (-20.0 points)"
    told += "; {} go the other way, most of all *most* (+20.0 points)"
    begins = "**VL-BERT**, {} comparisons of 1 sentence. "
    every = [shown, against, most, ours]
    assert sentence("VL-BERT", every) == f"{begins.format(3)}{told.format(2)}."
    left = claims.Judged(replace(against.claim, id="left"), None)
    assert sentence("VL-BERT", [shown, left]).endswith("(-20.0 points); 1 was not run.")


def test_a_first_attempt_is_not_counted_where_the_second_has_as_many_runs() -> None:
    found = found_of(10, (9, 11))

    def ids(*rows: tuple[str, int]) -> list[str]:
        made = [claims.Judged(claims.Claim(**{**ROW, "id": name}), replace(found, seeds=n)) for name, n in rows]
        return [each.claim.id for each in standing.latest_attempts(made)]

    assert ids(("words", 3), ("words-all", 3), ("a-learned-image", 1), ("a-longer-image", 1)) == [
        "words-all", "a-longer-image",
    ]  # fmt: skip
    assert ids(("words", 3), ("words-all", 1)) == ["words", "words-all"]


def test_sentences_of_the_papers_are_counted_once() -> None:
    """A sentence may have several comparisons."""
    yes, no = found_of(10, (9, 11)), found_of(0, (-1, 1))
    judged = [
        claims.Judged(claims.Claim(**{**ROW, "sentence": sentence, "place": place}), found)
        for sentence, place, found in (
            ("a", "page 1", yes), ("a", "page 1", yes), ("b", "page 1", yes), ("b", "page 2", no), ("c", "page 1", no),
            ("d", "page 1", None), ("e", claims.CONTROL, yes),
        )
    ]  # fmt: skip
    told = standing.told_sentences(judged)
    assert told == "Of the 3 sentences 1 are shown in all of their comparisons, 1 in some, and 1 in none."


def test_seeds_of_two_precisions_and_devices_are_named(tmp_path: Path) -> None:
    """bf16 against float32, or a GPU against the CPU, can make as much as is claimed."""
    arms = {"perfect/vlbert-a": {"words true": 0.9}, "perfect/vlbert-b": {"words true": 0.1}}
    commands = make_results(tmp_path / "results", arms)
    for name in ("vlbert-a-1", "vlbert-a-2", "vlbert-b-2"):
        path = tmp_path / "results" / "perfect" / f"{name}.json"
        told = {"precision": "float32"} if name != "vlbert-a-2" else {"precision": "float32", "device": "a GPU"}
        path.write_text(json.dumps({**json.loads(path.read_text()), **told}))
    page_of(tmp_path / "results", tmp_path, commands, written(tmp_path / "claims.tsv", {}))
    (row,) = rows_of(tmp_path, "claims")
    assert row["about_the_runs"] == "of two precisions: 1; CPU and GPU: 2" and row["verdict"] == "shown"


def test_the_table_of_recipes_is_of_now(tmp_path: Path) -> None:
    """That of docs/finetuning.md; a page whose table lacks a row gets it."""
    text = (REPOSITORY / "docs" / "finetuning.md").read_text("utf-8")
    assert f"{recipe_table.recipe_table()}\n" in text, 'make evidence ARGS="--page" writes it anew'
    assert TASK_RECIPES.keys() >= recipe_table.FULL
    assert f"{len(TASK_RECIPES) - len(recipe_table.FULL)} more recipes" in text
    copy = tmp_path / "page.md"
    copy.write_text(text.replace(f"{recipe_table.recipe_table().splitlines()[2]}\n", ""), "utf-8")
    recipe_table.write_recipe_table(copy)
    assert copy.read_text("utf-8") == text


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ("shown shown", "**yes**"), ("shown not-run", "**yes**"), ("shown the-other-way", "in part"),
        ("hint not-shown", "hint"), ("hint hint-against", "unclear"), ("hint-against not-shown", "unclear"),
        ("the-other-way not-shown", "no"), ("not-shown", "not shown"), ("not-run", "not run"),
    ],
)  # fmt: skip
def test_a_sentence_stands_as_its_comparisons_do(verdicts: str, said: str) -> None:
    assert standing.stands([SimpleNamespace(verdict=each.replace("-", " ")) for each in verdicts.split()]) == said


def test_a_long_table_has_plain_cells_and_an_interval_in_three_columns(tmp_path: Path) -> None:
    rows = [["a|b", "1.5 [-0.1 .. +3.0]", "51 %"], ["c", "", ""]]
    tables.write_csv(tmp_path / "made.csv", ["", "R@1, gain", "part of the way"], rows)
    assert (tmp_path / "made.csv").read_text("utf-8").splitlines() == [
        ",r1_gain,r1_gain_low,r1_gain_high,part_of_the_way", "a|b,1.5,-0.1,+3.0,51", "c,,,,",
    ]  # fmt: skip


@pytest.mark.slow
def test_page_and_tables_are_what_the_command_writes(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    (tmp_path / "docs").mkdir()
    shutil.copy(REPOSITORY / "docs" / "finetuning.md", tmp_path / "docs")
    paths = {"PYTHONPATH": f"{tmp_path / 'bench'}:{REPOSITORY / 'src'}", "PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, "-m", "evidence", "--page"], env={**os.environ, **paths}, cwd=tmp_path, check=True)
    files = ["bench/evidence/claims.tsv", "docs/finetuning.md", "docs/evidence.md"]
    for folder in (REPOSITORY, tmp_path):
        found = [*folder.glob("docs/evidence/*"), *folder.glob("docs/evidence_*.svg")]
        files += sorted(f"{path.relative_to(folder)}" for path in found)
    differ = [name for name in files if (tmp_path / name).read_bytes() != (REPOSITORY / name).read_bytes()]
    assert not differ, 'make evidence ARGS="--page" writes them anew'
