"""Figures of the papers, each once; those of the recipes, copied once more from the papers, row by row in the order in
which they stand there."""

import re
from collections import Counter
from pathlib import Path

import pytest

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, figures_of, paper_figures
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.published import RECIPES

DOCS = Path(__file__).parents[2] / "docs"
# Read out of the five papers, each number once, rows quoted from others left out.
OWN = {"VL-BERT, version 1": 24, "ViLBERT": 109, "VisualBERT": 68, "ImageBERT": 102, "InterBERT": 53}


def own_figures() -> list[PaperFigure]:
    return [each for each in paper_figures() if each.paper in OWN and not each.quoted and not is_head(each)]


def is_head(figure: PaperFigure) -> bool:
    return re.fullmatch(r"\d+-\d+", figure.printed) is not None


def test_the_papers_own_figures_are_all_there() -> None:
    assert Counter(each.paper for each in own_figures()) == OWN and sum(OWN.values()) == 356
    assert sum(map(is_head, paper_figures())) == 10
    others = Counter(each.paper for each in paper_figures() if each.paper not in OWN)
    assert others == {"VL-BERT, later version": 15, "InterBERT, README.md": 9}


def test_each_figure_stands_once() -> None:
    lines = Counter((each.paper, each.row, each.column) for each in paper_figures())
    assert set(lines.values()) == {1}
    assert {each.quoted for each in paper_figures()} == {"", "other work", "data set"}
    assert all(each.table or each.paper == "InterBERT, README.md" for each in paper_figures())


def test_a_figure_has_the_recipe_that_names_it_or_says_why_none() -> None:
    chosen = {**RECIPES, **TASK_RECIPES}
    for each in paper_figures():
        if each.quoted:
            assert not each.recipe and not each.why, each
            continue
        assert bool(each.recipe) != bool(each.why), each
        if each.recipe:
            assert each in chosen[each.recipe].figures or is_head(each), each
    named = {each for recipe in chosen.values() for each in recipe.figures}
    assert not [each for each in named if not each.recipe or each.quoted]


@pytest.mark.parametrize(
    "reference, words",
    [
        (("VilBERT", "ViLBERT"), "no paper 'VilBERT' in paper_figures.csv: did you mean ViLBERT"),
        (("ViLBERT", "ViLBERT (3-layer)"), r"ViLBERT has no row 'ViLBERT \(3-layer\)' in paper_figures.csv"),
        (("ViLBERT", "ViLBERT", "VQA", "VCR, Q->B"), "ViLBERT, ViLBERT: no column 'VCR, Q->B'"),
        (("ViLBERT", "ViLBERT", "VCR, Q->A, va"), "no column 'VCR, Q->A, va'"),
    ],
)
def test_an_unknown_reference_is_refused(reference: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        figures_of(*reference)


def test_a_reference_takes_whole_parts_of_columns() -> None:
    found = figures_of("ViLBERT", "ViLBERT", "VCR, Q->A", "VQA, accuracy, test-std")
    assert [(each.column, each.printed) for each in found] == [
        ("VQA, accuracy, test-std", "70.92"),
        ("VCR, Q->A, val", "72.42"),
        ("VCR, Q->A, test", "73.3"),
    ]


def test_the_page_counts_from_the_file() -> None:
    text = (DOCS / "models.md").read_text("utf-8")
    section = text.partition("## Figures of the papers\n")[2].partition("\n## ")[0]
    own = own_figures()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line][2:]
    named = Counter(each.paper for each in own if each.recipe)
    ours = [[paper, str(count), str(named[paper])] for paper, count in OWN.items()]
    ours.append(["all five", str(len(own)), str(sum(bool(each.recipe) for each in own))])
    assert [row[:3] for row in table] == ours
    for paper in OWN:
        whys = Counter(each.why for each in own if each.paper == paper and each.why)
        cell = next(row[3] for row in table if row[0] == paper)
        assert cell == ("; ".join(f"{count}: {why}" for why, count in whys.items()) or "-")
    quoted = Counter(each.quoted for each in paper_figures() if each.quoted)
    assert f"{quoted['other work']} that the papers quote" in section and f"{quoted['data set']} counts" in section


# recipe | where | the row
PRINTED = """
vlbert-paper | version 1, Table 2 | 73.7 74.0 74.5 74.8 55.0 55.5
vlbert-paper | version 1, Table 3 | 70.50 70.83
vlbert-paper | version 1, Table 4 | 78.44 81.30 71.18 71.84 77.59 60.57
vilbert | Tables 1 to 3 | 70.55 72.42 74.47 54.04 72.34 78.52 62.61 58.20 84.90 91.52 31.86 61.12 72.80
vilbert | Table 1 | 70.92 73.3 74.6 54.8
vilbert-paper | Tables 1 to 3 | 70.55 72.42 74.47 54.04 72.34 78.52 62.61 58.20 84.90 91.52 31.86 61.12 72.80
vilbert-without-bert | InterBERT's paper, section 3.6 | 61.7 59.7
vilbert-2-layer | Table 2 | 69.92 72.44 74.80 54.40 71.74 78.61 62.28 55.68 84.26 90.56 26.14 56.04 68.80
vilbert-4-layer | Table 2 | 70.22 72.45 74.00 53.82 72.07 78.53 63.14 55.38 84.10 90.62 26.28 54.34 66.08
vilbert-8-layer | Table 2 | 70.47 72.33 74.15 53.79 71.66 78.29 62.43 58.78 85.60 91.42 32.80 63.38 74.62
vilbert-25-percent | Table 3 | 69.82 71.61 73.00 52.66 69.90 76.83 60.99 53.08 80.80 88.52 20.40 48.54 62.06
vilbert-50-percent | Table 3 | 70.30 71.88 73.60 53.03 71.16 77.35 61.57 54.84 83.62 90.10 26.76 56.26 68.80
vilbert-single-stream | Table 1 | 68.85 71.09 73.93 52.73 69.21 75.32 61.02
visualbert-task-vqa | Tables 1 and 3 | 70.80
visualbert-task-vqa | Table 3 | 71.00
visualbert-task-vqa-late-fusion | Table 3 | 68.18
visualbert-task-vqa-without-coco | Table 3 | 70.18
visualbert-task-vcr | Tables 1 and 4 | 52.4
visualbert-task-vcr | Table 4 | 70.8 71.6 73.2 73.2 52.2
visualbert-task-vcr | footnote 3 | 51.4
visualbert-task-vcr-late-fusion | Table 4 | 70.1 71.9 50.6
visualbert-task-vcr-without-coco | Table 4 | 67.9 69.5 47.9
visualbert-task-nlvr2 | Tables 1 and 5 | 67.3
visualbert-task-nlvr2 | Table 5 | 67.4 67.0 26.9
visualbert-task-nlvr2-late-fusion | Table 5 | 64.6
visualbert-task-nlvr2-without-coco | Table 5 | 63.5
visualbert-task-flickr | Tables 1 and 6 | 71.33
visualbert-task-flickr | Table 6 | 70.40 84.49 84.98 86.31 86.51
visualbert-task-flickr | section 3.1 | 50.77 17.33
visualbert-task-flickr | Table 2 | 19.59 54.01 17.34 32.82 18.67 45.96 23.19 44.64 20.61 49.27 9.82 30.24 23.32 48.80 21.41 38.15 16.33 34.06 23.15 67.44
visualbert-task-flickr-late-fusion | Table 6 | 70.33 84.53 86.39
visualbert-task-flickr-without-coco | Table 6 | 68.07 83.98 86.24 86.97 87.45
visualbert-ablation-full | Table 7 and footnote 4 | 66.7
visualbert-9-regions | footnote 4 | 64.8
visualbert-18-regions | footnote 4 | 65.5
visualbert-72-regions | footnote 4 | 67.1
visualbert-without-coco | Table 7 | 62.9
visualbert-without-images | Table 7 | 63.9
visualbert-late-fusion | Table 7 | 61.4
visualbert-without-bert | Table 7 | 64.7
visualbert-without-second-caption | Table 7 | 64.9
imagebert-stage-1 | Table 3 | 21.4 46.0 59.1 31.6 58.4 72.0
imagebert-stage-2 | Tables 1 and 3 | 54.3 79.6 87.5 70.7 90.2 94.0
imagebert-stage-2 | Table 1 | 53.6 83.2 91.7 67.0 90.3 96.1 32.3 59.0 70.2 44.0 71.2 80.4
imagebert-stage-2 | Tables 2 and 4 | 73.1 92.6 96.0 87.0 97.6 99.2
imagebert-stage-2 | Table 2 | 73.6 94.3 97.2 85.4 98.7 99.8 50.5 78.7 87.1 66.4 89.8 94.4
imagebert-stage-2 | Table 4, RoI(100) | 73.0 92.2 95.8 87.3 98.0 99.5
imagebert-stage-2 | Table 4, all losses | 71.9 91.1 94.1 86.6 97.6 98.7
imagebert-stage-2 | Table 4, CE only | 70.6 91.4 95.7 85.6 97.4 99.2
imagebert-stage-2 | Table 4, triplet only | 70.6 91.4 95.9 86.8 97.3 98.8
imagebert-stage-2-36-regions | Table 4, RoI(36) | 68.7 88.6 92.3 84.3 96.5 97.9
imagebert-cc-sbu | Tables 3 and 4 | 48.4 76.0 85.2 64.3 85.8 92.3
imagebert-lait-cc-sbu | Table 3 | 46.4 73.7 83.4 63.4 86.8 92.2
imagebert-cc | Tables 3 and 4 | 33.0 60.6 72.5 43.8 73.7 81.7
imagebert-cc-regression | Table 4 | 34.7 61.7 73.4 45.3 73.8 84.2
imagebert-cc-sbu-global | Table 4 | 49.2 75.9 84.9 64.0 87.4 92.4
interbert | Table 1 | 61.9 87.1 92.7 49.2 77.6 86.0 73.1 74.8 54.9
interbert | Table 3 | 91.1 57.3 92.3 88.9 64.3 84.1 83.7 88.1 88.6 81.8
interbert-single-masks | Table 2 | 72.3 74.3 54.0
interbert-without-bert | section 3.6 | 65.3 64.4
interbert-single-stream | Table 3 | 90.8 52.3 91.6 88.6 59.2 82.6 84.1 87.8 86.4 80.0
interbert-release | README.md | 61.9 87.1 92.7 49.2 77.6 86.0 73.1 74.8 54.9
"""  # noqa: E501


def test_every_figure_is_the_printed_one() -> None:
    rows = [tuple(part.strip() for part in line.split("|")) for line in PRINTED.strip().splitlines()]
    printed = {(name, where): [float(value) for value in values.split()] for name, where, values in rows}
    assert len(printed) == len(rows)
    ours: dict[tuple[str, str], list[float]] = {}
    for name, recipe in RECIPES.items():
        for figure in recipe.figures:
            ours.setdefault((name, figure.where), []).append(figure.value)
    assert ours == printed


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if not recipe.figures])
def test_a_recipe_without_figures_says_why(name: str) -> None:
    """It is the first phase of another one, or of a release that prints none."""
    goes_on = any(recipe.after == name for recipe in RECIPES.values())
    assert goes_on or any("prints no figures" in each for each in RECIPES[name].left_open)


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_left_open_is_said_once(name: str) -> None:
    left_open = RECIPES[name].left_open
    assert left_open and len(set(left_open)) == len(left_open)
    assert all(each.endswith(".") for each in left_open)


ONE_HEAD = ("stage-1", "stage-2", "cc-sbu", "lait-cc-sbu", "cc-sbu-global")


@pytest.mark.parametrize(
    "name, words",
    [
        *((f"imagebert-{name}", "with_region_feature_head=false") for name in ONE_HEAD),
        ("imagebert-cc-sbu", "Unicoder-VL"),
        ("visualbert-late-fusion", "second phase"),
        ("visualbert-ablation-full", "64.8 with 9 regions, 65.5 with 18 and 67.1 with 72"),
        ("visualbert-task-nlvr2", "Table 1 has 67.3 under test-P"),
        ("vilbert", "762"),
        ("interbert", "173 million"),
    ],
)
def test_what_a_paper_says_in_two_ways_is_left_open(name: str, words: str) -> None:
    assert any(words in each for each in RECIPES[name].left_open)
