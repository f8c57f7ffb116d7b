"""Every recipe runs: `roibeam pretrain` and `finetune --recipe NAME --toy` for a step or two, on a toy world.

One of each (system, task, mode) in the default suite; all of them by `make test-recipes`. The slow suite takes those of
pre-training that are put together from other parts, and a tenth of the rest, another one every day. What such a run
builds is compared with its recipe by test_runs_are_recipes.py.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from glue_files import write_task
from json_lines import json_lines
from tiny_commands import Cli, command, ok

from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.scored_tasks import DETECTIONS_NAME
from roibeam.pipelines.pretraining.recipes.published import RECIPES, stages_before
from roibeam.pipelines.pretraining.recipes.recipe import Recipe

TURNS = 10
SHORT = ("--batch-size", 2, "--threads", 1, "--device", "cpu", "--toy")


def kind(recipe: Recipe | TaskRecipe) -> tuple[object, ...]:
    """System, task and mode."""
    if isinstance(recipe, TaskRecipe):
        return recipe.system, recipe.task, recipe.end_to_end
    return recipe.system, recipe.end_to_end, recipe.task_text, recipe.text_corpus


FIRST_STAGES = {recipe.after for recipe in RECIPES.values()}


def parts(name: str) -> Iterator[object]:
    """What a toy's run of pre-training is put together from: the system's choices and settings, its samples, its kinds
    of data; and all of the run that it goes on from."""
    recipe = RECIPES[name]
    choices = recipe.toy_build().to_dict().items()
    yield from ((recipe.system, *choice) for choice in choices if isinstance(choice[1], str | bool))
    yield from ((recipe.system, *map(str, setting)) for setting in recipe.settings.items())
    yield recipe.system, repr(recipe.sampling)
    yield recipe.system, recipe.text_corpus, recipe.end_to_end, "global" in name
    yield recipe.data.partition(",")[0] if recipe.task_text else "captions", bool(recipe.after)
    if recipe.after:
        yield from parts(recipe.after)


def cases(recipes: Mapping[str, Recipe | TaskRecipe]) -> list[Any]:
    """The first of each kind; those of pre-training with a part that those before lack are slow, but first stages,
    which run with what comes after; others are a soak, of which a share takes turns: they differ in numbers only."""
    first: dict[tuple[object, ...], str] = {}
    slow, others, seen = list[str](), list[str](), set[object]()
    for name, recipe in recipes.items():
        first.setdefault(kind(recipe), name)
        own = set() if isinstance(recipe, TaskRecipe) or name in FIRST_STAGES else set(parts(name))
        if name not in first.values():
            (others if own <= seen else slow).append(name)
        seen |= own
    turn, share = date.today().toordinal() % TURNS, float(os.environ.get("ROIBEAM_SOAK", "1"))
    chosen = others if share >= 1 else others[turn::TURNS]
    marked = [pytest.param(name, marks=pytest.mark.slow) for name in slow]
    return [*first.values(), *marked, *(pytest.param(name, marks=pytest.mark.soak) for name in chosen)]


class World:
    """A toy world with tasks, the perfect store of its pictures, and a store of a few by the toy detector.

    Nothing may be written there.
    """

    def __init__(self, folder: Path) -> None:
        self.world, self.tasks = folder / "world", folder / "tasks"
        self.perfect, self.entities, self.detected = folder / "perfect", folder / "entities", folder / "detected"
        options = ("--perfect-store", self.perfect, "--tasks", self.tasks, "--entities", self.entities)
        command("toyworld", self.world, "--num-images", 120, "--workers", 1, *options)
        for name in set(GLUE_TASKS) - {path.name for path in self.tasks.iterdir()}:
            write_task(self.tasks / name, name)
        # The detector of the "detected" track finds each annotated box, and is sure of it.
        boxes = json.loads((self.tasks / "refcoco+" / "instances.json").read_text())["annotations"]
        found = [
            {"box": each["bbox"], "image_id": each["image_id"], "category_id": each["category_id"], "score": 0.9}
            for each in boxes
        ]
        (self.tasks / "refcoco+" / DETECTIONS_NAME).write_text(json.dumps(found))
        self.outlines, self.object_names = self.tasks / "vcr" / "vcr1images", self.tasks / "vcr" / "object_names.txt"
        self.captions, self.few = folder / "dataset_coco.json", folder / "few.tsv"
        # A run ends with an evaluation of up to 256 captions: of these there are 60.
        captioned = json.loads((self.world / "coco" / "dataset_coco.json").read_text())
        captioned["images"] = captioned["images"][:12]
        self.captions.write_text(json.dumps(captioned))
        photos, rows = folder / "photos", []
        photos.mkdir()
        for each in captioned["images"][:6]:
            shutil.copy(self.world / "coco" / each["filepath"] / each["filename"], photos)
            rows.append(f"{each['sentences'][0]['raw']}\t{Path(each['filename']).stem}")
        self.few.write_text("\n".join(rows) + "\n")
        command("extract", photos, self.detected, "--detector", "toy", "--image-feature", "region", "--workers", 1)

    def of_pretraining(self, recipe: Recipe) -> tuple[object, ...]:
        end_to_end = recipe.end_to_end and not recipe.on_stored
        has_global = "global_feature_size" in recipe.build.fields  # of which the perfect store has none
        few = end_to_end or has_global
        store = self.detected if few else self.perfect
        given: list[object] = ["--store", store, "--tokenizer", self.world / "vocab.txt", "--min-match", 0]
        if not recipe.task_text or recipe.after:
            given += ["--captions", self.few if few else self.captions]
        if recipe.task_text:
            given += [word for file in self.texts(recipe) for word in ("--task-text", file)]
        if has_global:
            width = json.loads((self.detected / "manifest.json").read_text())["feature_dim"]
            given += ["--set", f"model.global_feature_size={width}"]
        if recipe.text_corpus:
            given += ["--text-corpus", self.world / "text" / "corpus.txt"]
        if getattr(recipe.sampling, "told_classes", False):
            instances = (self.world / "coco" / "annotations").glob("instances_*.json")
            given += [word for file in (*instances, self.outlines) for word in ("--objects", file)]
            # The perfect store does not say that its boxes are given ones; test_vcr_phases.py has one that does.
            settings = (f"object_names={self.object_names}", "aligned_words=none", "shown_boxes=all")
            given += [word for each in settings for word in ("--set", f"sampling.{each}")]
        return (*given, *(["--end-to-end"] if end_to_end else []))

    def texts(self, recipe: Recipe) -> tuple[Path, ...]:
        questions = self.tasks / "vqa" / "v2_OpenEnded_mscoco_train2014_questions.json"
        return {
            "vqa": (questions, self.tasks / "vqa" / "v2_mscoco_train2014_annotations.json"),
            "vcr": (self.tasks / "vcr" / "train.jsonl",),
            "nlvr2": (self.tasks / "nlvr2" / "train.json",),
            "flickr": (self.world / "flickr30k" / "dataset_flickr30k.json",),
        }[next(task for task in ("vqa", "vcr", "nlvr2", "flickr") if task in f"{recipe.summary} {recipe.data}".lower())]

    def of_task(self, recipe: TaskRecipe) -> tuple[object, ...]:
        folders = {"retrieval": self.world / "flickr30k", "flickr30k-entities": self.entities}
        given: list[object] = ["--data", folders.get(recipe.task, self.tasks / recipe.task)]
        if recipe.task not in GLUE_TASKS:
            given += ["--store", self.perfect, "--min-match", 0]
        if recipe.features is not None and recipe.features.annotated and not recipe.end_to_end:
            given += ["--annotated-store", self.perfect]
        if recipe.task == "vcr":
            given += ["--set", f"vcr.object_names={self.object_names}"]
        given += ["--tokenizer", self.world / "vocab.txt", "--set", "data.validation_groups=2"]
        if recipe.end_to_end:
            given += ["--end-to-end", "--photos", self.outlines if recipe.task == "vcr" else self.world]
        return tuple(given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("name", cases(RECIPES))
def test_a_pre_training_recipe_runs(roibeam: Cli, world: World, tmp_path: Path, name: str) -> None:
    given = ("--set", "train.accumulation=1", "--steps", 2, *world.of_pretraining(RECIPES[name]))
    facts = json_lines(ok(roibeam("pretrain", tmp_path / "run", "--recipe", name, *SHORT, *given, "--json")).out)
    assert len(facts) == len(stages_before(name)) + 1
    assert all(fact["step"] == 2 and math.isfinite(fact["last"]["loss"]) for fact in facts)
    last = tmp_path / "run" / (f"stage-{len(stages_before(name)) + 1}" if stages_before(name) else ".")
    assert (last / "checkpoints" / "step-00000002" / "model").is_dir()


@pytest.mark.parametrize("name", cases(TASK_RECIPES))
def test_a_task_recipe_runs(roibeam: Cli, world: World, tmp_path: Path, name: str) -> None:
    recipe = TASK_RECIPES[name]
    given = ("--task", recipe.task, "--from", "none", "--steps", 1, *world.of_task(recipe))
    ok(roibeam("finetune", tmp_path / "run", "--recipe", name, *SHORT, *given))
    assert (tmp_path / "run" / "checkpoints" / "step-00000001" / "model").is_dir()
