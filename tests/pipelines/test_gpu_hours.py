"""GPU hours of published runs: the rates are those of BENCHMARKS.md, and stand where they fit."""

from dataclasses import replace
from pathlib import Path

from roibeam.pipelines.finetuning.recipes.published import CARD, RATES, TASK_RECIPES, gpu_hours

BENCHMARKS = Path(__file__).parents[2] / "BENCHMARKS.md"


def test_rates_of_steps_are_those_that_were_measured() -> None:
    section = BENCHMARKS.read_text("utf-8").partition("## Fine-tuning steps on a GPU\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| V")]
    names = {"VL-BERT": "vlbert", "ViLBERT": "vilbert"}
    measured = {
        (task.lower(), names[model], features == "end to end"): float(rate.replace(",", ""))
        for (task, model), features, rate in ((row[0].split(", "), row[1], row[3]) for row in rows)
    }
    assert {rate[:2] + rate[3:4]: rate.questions_per_second for rate in RATES} == measured
    assert f"one {CARD} (" in section


def test_hours_are_told_where_a_rate_fits() -> None:
    """Questions times epochs by the rate; not of other sizes, systems, features, and not of rationales."""
    found = {name: gpu_hours(recipe) for name, recipe in TASK_RECIPES.items()}
    told = {name: each for name, each in found.items() if each is not None}
    stored, photos = 658_111 * 20 / 679 / 3600, 212_923 * 20 / 45.5 / 3600
    assert told["vilbert-vqa"] == (stored, "NVIDIA H200", 658_111, 679) and 5 < stored < 6
    assert told["vlbert-vcr-answer"] == (photos, "NVIDIA H200", 212_923, 45.5) and 25 < photos < 27
    assert told["vlbert-vqa"].hours < 1
    models = {(TASK_RECIPES[name].system, TASK_RECIPES[name].task, TASK_RECIPES[name].end_to_end) for name in told}
    assert models == {("vilbert", "vqa", False), ("vlbert", "vqa", False), ("vlbert", "vcr", True)}
    for name in ("vlbert-vqa-large", "vilbert-vqa-2-layer", "vilbert-vqa-single-stream", "vlbert-vcr-rationale"):
        assert found[name] is None
    assert found["vlbert-vqa-paper"] is None  # from photos, which was not measured
    recipe = TASK_RECIPES["vilbert-vqa"]
    part = gpu_hours(replace(recipe, options=replace(recipe.options, train="train")))
    assert part is not None and part.questions == 443_757
    assert gpu_hours(replace(recipe, options=replace(recipe.options, visual_genome="all"))) is None
