"""The published runs: each can be built, says where it is from, and its toy variant trains."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_commands import Cli, Pictures, one_line

from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.pretraining.recipes.published import PARAMETERS, PRINTED, RECIPES, recipe_named, stages_before
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.train_config import TrainConfig


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_built(name: str) -> None:
    recipe = RECIPES[name]
    system = SYSTEMS[recipe.system]
    assert isinstance(recipe.sampling, system.sampling)
    for build in (recipe.build, recipe.toy_build):
        assert isinstance(build(vocab_size=100), system.model_class.config_class)
    large, toy = recipe.build(), recipe.toy_build()
    assert toy.hidden_size < large.hidden_size
    choices = {field for field in large.to_dict() if isinstance(large.to_dict()[field], str | bool)}
    assert {field: toy.to_dict()[field] for field in choices} == {field: large.to_dict()[field] for field in choices}
    assert not recipe.after or recipe.after in RECIPES
    if recipe.after:
        before = RECIPES[recipe.after].build().to_dict() | dict(recipe.changes)
        assert {field: before[field] for field in choices} == {field: large.to_dict()[field] for field in choices}
    assert len({(each.task, each.metric, each.where) for each in recipe.figures}) == len(recipe.figures)
    assert all(0 < each.value < 100 for each in recipe.figures)
    assert recipe.source and recipe.summary and not recipe.summary.endswith(".")
    steps = recipe.train_config(1_000_000, micro_batch=8, processes=1).steps
    assert steps == -(-recipe.epochs * 1_000_000 // recipe.batch_size)
    assert isinstance(recipe.toy_config(micro_batch=8), TrainConfig)


# What recipes are from, of VL-BERT 4373674, vilbert_beta f0c9a2b, visualbert 2a9e8bd and InterBERT 7ccabb1.
PUBLIC_FILES = {
    "jackroos/VL-BERT": {
        *(f"cfgs/pretrain/{size}_prec_4x16G_{kind}.yaml" for size, kind in (("base", "fp32"), ("large", "fp16"))),
        *(f"cfgs/pretrain/{size}_e2e_16x16G_fp16.yaml" for size in ("base", "large")),
        "cfgs/pretrain/base_prec_withouttextonly_4x16G_fp32.yaml",
        *(f"cfgs/vqa/{size}_4x16G_fp32.yaml" for size in ("base", "large")),
        *(f"cfgs/vcr/base_{problem}_4x16G_fp32.yaml" for problem in ("q2a", "qa2r")),
        *(f"cfgs/vcr/large_{problem}_4x16G_fp16.yaml" for problem in ("q2a", "qa2r")),
        *(f"cfgs/refcoco/{size}_gt_boxes_4x16G.yaml" for size in ("base", "large")),
        *(f"cfgs/refcoco/{size}_detected_regions_4x16G.yaml" for size in ("base", "large")),
    },
    "jiasenlu/vilbert_beta": {
        "train_concap.py", "train_tasks.py", "vlbert_tasks.yml", "vilbert/datasets/retreival_dataset.py",
    },
    "uclanlp/visualbert": {
        *(f"visualbert/configs/{task}/coco-pre-train.json" for task in ("vqa", "nlvr2", "vcr", "flickr")),
        *(f"visualbert/configs/{task}/pre-train.json" for task in ("vqa", "nlvr2", "vcr", "flickr")),
        *(f"visualbert/configs/{task}/fine-tune.json" for task in ("vqa", "nlvr2", "flickr")),
        *(f"visualbert/configs/vcr/fine-tune-{problem}.json" for problem in ("qa", "qar")),
        "visualbert/models/model.py",
        "visualbert/utils/detector.py",
    },
    "black4321/InterBERT": {
        "README.md", "interbert_tasks.yml", "bertmodel/task_utils.py", "train_concap.py", "train_tasks.py",
    },
}  # fmt: skip


def test_every_file_that_a_recipe_is_from_is_in_its_repository() -> None:
    cited: dict[str, set[str]] = {name: set() for name in PUBLIC_FILES}
    for name, recipe in {**RECIPES, **TASK_RECIPES}.items():
        for part in recipe.source.split("; "):
            files = re.findall(r"[\w./-]+\.(?:py|ya?ml|json|md)\b", part)
            repository = part.split()[0]
            assert not files or set(files) <= PUBLIC_FILES[repository], (name, part)
            if files:
                cited[repository] |= set(files)
    assert cited == PUBLIC_FILES


def test_batch_and_rate_do_not_depend_on_the_processes() -> None:
    recipe = recipe_named("vlbert-base-captions")
    alone = recipe.train_config(3_300_000, micro_batch=32, processes=1)
    eight = recipe.train_config(3_300_000, micro_batch=32, processes=8)
    assert (alone.accumulation, eight.accumulation) == (8, 1)
    assert alone.learning_rate == eight.learning_rate == pytest.approx(2.56e-5)
    assert alone.steps == eight.steps == 128_907 and alone.warmup_steps == 8000
    assert (recipe.at_once(1), recipe.at_once(16), recipe.at_once(3)) == (32, 16, 32)
    assert recipe_named("imagebert-cc").at_once(1) == 24
    with pytest.raises(ValueError, match="256 is no multiple of 100 on 1 processes"):
        recipe.train_config(3_300_000, micro_batch=100, processes=1)


@pytest.mark.parametrize("task", ["vqa", "vcr", "nlvr2", "flickr"])
def test_variants_of_visualbert(task: str) -> None:
    """Without early fusion is without it from the first phase on; without COCO is a single run, from BERT."""
    full, late, without = (RECIPES[f"visualbert-task-{task}{end}"] for end in ("", "-late-fusion", "-without-coco"))
    assert stages_before(f"visualbert-task-{task}-late-fusion") == [f"visualbert-coco-{task}-late-fusion"]
    assert not RECIPES[late.after].build().early_fusion and not late.build().early_fusion
    assert stages_before(f"visualbert-task-{task}-without-coco") == []
    assert without.start == "bert-base-uncased" and without.build().to_dict() == full.build().to_dict()
    firsts = [recipe.figures[0] for recipe in (full, late, without)]
    assert len({(each.task, each.metric) for each in firsts}) == 1
    assert firsts[0].value > max(firsts[1].value, firsts[2].value)  # by every table of the paper


@pytest.mark.parametrize(
    "end", ["ablation-full", "without-images", "late-fusion", "without-bert", "without-second-caption"]
)
def test_ablations_of_visualbert(end: str) -> None:
    """Both phases, with 36 regions, and what is left out stays out in the second one; its figures are NLVR2's."""
    first, second = RECIPES[f"visualbert-coco-{end}"], RECIPES[f"visualbert-{end}"]
    assert stages_before(f"visualbert-{end}") == [f"visualbert-coco-{end}"]
    assert first.sampling.max_regions == second.sampling.max_regions == 36
    assert second.task_text and second.data.startswith("NLVR2") and not first.task_text
    assert first.build().to_dict() == second.build().to_dict()
    assert first.sampling.with_regions == (end != "without-images") and second.sampling.with_regions
    assert first.start == second.start == ("" if end == "without-bert" else "bert-base-uncased")
    assert not first.figures and [each.task for each in second.figures] == ["NLVR2"]
    assert first.build().early_fusion == (end != "late-fusion")
    assert first.build().with_match_head == (end != "without-second-caption")


@pytest.mark.parametrize("regions", [9, 18, 72])
def test_footnote_4_has_pre_trainings_of_its_own(regions: int) -> None:
    """They went on from the model of 36 regions."""
    task = TASK_RECIPES[f"visualbert-nlvr2-{regions}-regions"]
    second = RECIPES[task.model]
    first = RECIPES[second.after]
    assert {each.sampling.max_regions for each in (first, second)} | {task.options.max_regions} == {regions}
    full = RECIPES["visualbert-ablation-full"]
    numbers = {"sampling": full.sampling, "after": full.after}
    same = ("summary", "source", "figures", "left_open")
    assert replace(second, **numbers, **{each: getattr(full, each) for each in same}) == full
    assert first.build().to_dict() == second.build().to_dict() and not first.task_text and second.task_text


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith(("vilbert", "interbert"))])
def test_parameters_are_counted_again(name: str) -> None:
    """And what comes nearest to the numbers of InterBERT's paper is what it is called."""
    recipe = RECIPES[name]
    with torch.device("meta"):
        model = SYSTEMS[recipe.system].model_class(recipe.build())
    counts = {path: each.numel() for path, each in model.named_parameters()}
    assert sum(counts.values()) == PARAMETERS[name]
    if name not in PRINTED:
        return
    nearest = sum(count for path, count in counts.items() if "layers." in path or ".region_embeddings." in path)
    config = model.config
    if recipe.system == "vilbert":  # biOutput.q_dense1 and q_dense2 of jiasenlu/vilbert_beta vilbert/vilbert.py
        width = config.image_hidden_size + config.hidden_size
        nearest += len(config.text_co_attention) * (config.co_attention_size + 1) * width
    assert nearest == PRINTED[name].nearest and round(nearest / 1e6) == PRINTED[name].millions


def test_a_recipe_tells_its_parameters_beside_the_printed_ones(roibeam: Cli) -> None:
    for name, words in (
        ("interbert", "199,746,685; 173 million in InterBERT's paper, section 3.5, near the 172,674,048"),
        ("vilbert-paper", "239,023,229; 221 million in InterBERT's paper, section 3.5, near the 221,052,416"),
        ("interbert-single-stream", "parameters 114,692,221"),
    ):
        assert words in " ".join(roibeam("recipes", name).out.split())
    assert json.loads(roibeam("recipes", "interbert", "--json").out)["interbert"]["parameters"] == 199_746_685


def test_the_list_and_one_of_them(roibeam: Cli) -> None:
    listed = roibeam("recipes")
    assert listed.code == 0 and [line.split()[0] for line in listed.out.splitlines()] == [*RECIPES, *TASK_RECIPES]
    one = roibeam("recipes", "vlbert-paper")
    assert "VQA, accuracy, test-dev: 70.50 (version 1, Table 3)" in one.out and "left open" in one.out
    assert json.loads(roibeam("recipes", "vlbert-large", "--json").out)["vlbert-large"]["model"]["hidden_size"] == 1024
    unknown = roibeam("recipes", "vlbert-huge")
    assert unknown.code == 1 and "did you mean vlbert-large" in unknown.err


def test_recipes_that_do_not_fit_are_refused(roibeam: Cli, tmp_path: Path, pictures: Pictures) -> None:
    given = ("--store", pictures.store, "--captions", pictures.captions, "--steps", 2, "--recipe")
    for recipe, words in (
        (("vlbert-basis",), "did you mean vlbert-base"),
        # Which encoder it takes by itself, the store's being another.
        (("vlbert-base-e2e", "--toy", "--end-to-end", "--text-corpus", pictures.captions), "features of width 512"),
    ):
        assert words in one_line(roibeam("pretrain", tmp_path / "run", *given, *recipe))
