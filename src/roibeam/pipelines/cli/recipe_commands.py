"""Commands that repeat a published run, from official files to its figures, and what they need.

Words stand for places: DATA for official files, STORES for regions, one store for each kind of features of each photos,
RUNS for runs, predictions and scores. docs/tables.md has the folders below them.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.extraction.weights.detector_choice import PUBLISHED_SELECTIONS
from roibeam.extraction.weights.sources import fetch_from_hub
from roibeam.features.reading.temporary_copy import unfinished_lines
from roibeam.features.store import FeatureStore
from roibeam.messages import byte_count
from roibeam.pipelines.common.console.command_files import NamedFiles
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.data.datasets.karpathy import FILES
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, MATCHED, MISMATCHED
from roibeam.pipelines.data.feature_settings import PHOTOS, STORE, WEIGHTS, Features
from roibeam.pipelines.finetuning import scored_tasks as tasks
from roibeam.pipelines.finetuning.metrics.glue import PAPER_COLUMN
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES, gpu_hours
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, PRETRAINED, TaskRecipe
from roibeam.pipelines.finetuning.scored_tasks import FIVE_FOLDS, SCORED_TASKS
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, BOTH, RATIONALE
from roibeam.pipelines.pretraining.recipes.published import RECIPES, stages_before
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.training.model_files.model_folder import BERT_WEIGHTS


class Photos(NamedTuple):
    """Photos of a data set.

    Attributes:
        in_words: its name in `Recipe.data`.
        source: what `roibeam extract` reads, below DATA.
        captions: file of captions, below DATA; "" for none.
        table: file of URLs that `roibeam download` reads, below DATA; "" for photos that come as files.
    """

    in_words: str
    source: str
    captions: str = ""
    table: str = ""


def _downloaded(in_words: str, name: str, table: str) -> Photos:
    local = f"{name}/photos/local.tsv"
    return Photos(in_words, local, local, f"{name}/{table}")


PHOTO_SETS: Mapping[str, Photos] = MappingProxyType(
    {
        "conceptual-captions": _downloaded("Conceptual Captions", "conceptual-captions", "Train_GCC-training.tsv"),
        "sbu": _downloaded("SBU Captions", "sbu", "sbu-captions-all.json"),
        "conceptual-12m": _downloaded("LAIT", "conceptual-12m", "sample.tsv"),
        "coco": Photos("COCO", "coco", "coco/dataset_coco.json"),
        "flickr30k": Photos("Flickr30k", "flickr30k", "flickr30k/dataset_flickr30k.json"),
        "vcr": Photos("VCR", "vcr/vcr1images"),
        "nlvr2": Photos("NLVR2", "nlvr2/images"),
    }
)
_PLACE = re.compile(r"(.*=|)(DATA|STORES|RUNS)/(.*)")
# Behind the name of a run of retrieval on COCO, and of a search in its five parts; in columns of their figures.
_COCO, _IN_FOLDS, _ON_COCO, _FIRST_THOUSAND = "-coco", "-in-folds", "COCO (", "COCO (1k)"
ZERO_SHOT, AVERAGED = "zero-shot", "GLUE"
_QUESTIONS = "vqa/v2_OpenEnded_mscoco_train2014_questions.json", "vqa/v2_mscoco_train2014_annotations.json"
# Photos and files of text that a pre-training on a task's own text reads, by the first words of `Recipe.data`.
_TASK_TEXTS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {"VQA v2": ("coco", _QUESTIONS), "VCR": ("vcr", ("vcr/train.jsonl",)), "NLVR2": ("nlvr2", ("nlvr2/train.json",))}
)
_PHOTOS_OF_TASK: Mapping[str, str] = MappingProxyType(
    {
        "vqa": "coco", "refcoco": "coco", "refcoco+": "coco", "refcocog": "coco", "vcr": "vcr", "nlvr2": "nlvr2",
        "flickr30k-entities": "flickr30k", "retrieval": "flickr30k",
    }
)  # fmt: skip
# Split of `roibeam predict` and `roibeam score`, by a part of a figure's column.
_SPLITS: Mapping[str, str] = MappingProxyType(
    {
        "test-std": "test", "test-dev": "test-dev", "test-P": "test1", "test-U": "test2", "dev matched": MATCHED,
        "dev mismatched": MISMATCHED, "testA": "testA", "testB": "testB", "dev": "dev", "val": "val", "test": "test",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One command line.

    Attributes:
        key: what it makes; commands of one key are one.
        needs: keys of commands that come before.
        features: of a store.
    """

    key: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    features: Features | None = None

    def __str__(self) -> str:
        return shlex.join(("roibeam", *self.words))


def filled(word: str, folders: Mapping[str, Path | None]) -> str:
    """A word of a command with folders in place of DATA, STORES and RUNS, as far as they are given."""
    found = _PLACE.fullmatch(word)
    folder = None if found is None else folders.get(found[2])
    return word if found is None or folder is None else f"{found[1]}{folder / found[3]}"


def chain_of(name: str) -> list[str]:
    """Recipes whose runs follow one another, that of this name last."""
    recipe = TASK_RECIPES.get(name)
    if recipe is None:
        return [*stages_before(name), name]
    return [*(chain_of(recipe.model) if recipe.start == PRETRAINED else []), name]


def photos_of(recipe: Recipe | TaskRecipe) -> tuple[str, ...]:
    """Names in `PHOTO_SETS` of the photos that a recipe is trained on; () for texts alone."""
    if isinstance(recipe, TaskRecipe):
        return (_PHOTOS_OF_TASK[recipe.task],) if recipe.features is not None else ()
    if recipe.task_text:
        return (_task_text(recipe)[0],)
    sets = re.sub(r"\(.*?\)", "", recipe.data).partition(";")[0]
    return tuple(name for name, photos in PHOTO_SETS.items() if photos.in_words in sets)


def _task_text(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    return next(found for name, found in _TASK_TEXTS.items() if recipe.data.startswith(name))


def store_of(photos: str, features: Features) -> str:
    """Name of a store below STORES."""
    boxes = f"-{features.boxes}-boxes" if features.boxes else ""
    whole = f"-{features.image_feature.partition('=')[0]}-of-photo" if features.image_feature else ""
    return f"{photos}-{features.preset or features.detector}{boxes}{whole}"


def commands_of(name: str, seed: int = 0) -> list[Command]:
    """Commands of a recipe, each after those that it needs.

    They are downloads, stores, the runs it starts from, its own run, and what measures the printed figures.

    Args:
        seed: of the run of a task; what it starts from is the same for all.
    """
    found: dict[str, Command] = {}
    for each in chain_of(name):
        recipe = TASK_RECIPES.get(each) or RECIPES[each]
        for command in (*_stores(each, recipe), *_made(each, recipe, seed)):
            found.setdefault(command.key, command)
    for command in _measures(name, seed):
        found.setdefault(command.key, command)
    return list(found.values())


def source_of(figure: PaperFigure, seed: int = 0) -> tuple[str, str]:
    """Key of the command that measures a figure, and the measure's name in its JSON; of an average of tasks "" for
    both."""
    name, parts = figure.recipe, figure.column.split(", ")
    recipe = TASK_RECIPES.get(name)
    if recipe is not None and parts[0] != AVERAGED:
        run = _run_of(name, _ON_COCO in figure.column, seed)
        key = f"score of {_predictions(run, recipe, _split_of(figure))}"
        if recipe.task == "retrieval":
            found = "image" if "image retrieval" in parts[0] else "sentence"
            return f"{key}{_IN_FOLDS if _FIRST_THOUSAND in parts[0] else ''}", f"{found} {parts[1]}"
        glue = GLUE_TASKS.get(recipe.task)
        return key, PAPER_COLUMN[glue.name] if glue else "overall" if recipe.task == "vqa" else parts[1]
    if "grounding" in parts[0]:
        relation = parts[0].removeprefix("syntactic grounding of ").replace("entity grounding", "entity")
        return f"RUNS/{name}-attention", f"{relation}, {parts[1]}"
    if parts[0].startswith(ZERO_SHOT):
        photos = "flickr30k" if "Flickr30k" in parts[0] else "coco"
        found = "text_to_image" if "image retrieval" in parts[0] else "image_to_text"
        folds = _IN_FOLDS if _FIRST_THOUSAND in parts[0] else ""
        return f"RUNS/{name}-{photos}{folds}", f"{found}_{parts[1].replace('@', '').lower()}"
    return "", ""


def made_elsewhere(recipe: Recipe | TaskRecipe, commands: Iterable[Command]) -> Iterator[str]:
    """Lines on figures of a recipe that none of its commands measures, by the recipes or the tables that do."""
    keys = {each.key for each in commands}
    others = [each for each in recipe.figures if each.recipe and source_of(each)[0] not in keys]
    for name in dict.fromkeys(each.recipe for each in others if each.task != AVERAGED):
        columns = "; ".join(f"{each.printed} ({each.column})" for each in others if each.recipe == name)
        yield f"measured by roibeam recipes {name} --commands: {columns}"
    for each in (each for each in others if each.task == AVERAGED):
        yield f"the mean of the row's tasks in roibeam tables, {each.where}, --only {each.row!r}: {each.printed}"


def printed_figures(
    name: str, split: str, *, in_folds: bool = False, on_coco: bool | None = None
) -> dict[str, list[PaperFigure]]:
    """Printed figures of a task's recipe, of VCR for both problems, by the measure of `roibeam score` beside each.

    Args:
        in_folds: of the score in five parts of COCO's test images.
        on_coco: of retrieval on COCO, or not; None for all.
    """
    found: dict[str, list[PaperFigure]] = {}
    for figure in (one for each in _both_problems(name, TASK_RECIPES[name]) for one in TASK_RECIPES[each].figures):
        key, measure = source_of(figure)
        if on_coco is not None and (_ON_COCO in figure.column) != on_coco:
            continue
        if key and _split_of(figure) == split and key.endswith(_IN_FOLDS) == in_folds:
            found.setdefault(measure, []).append(figure)
    return found


def _run_of(name: str, on_coco: bool, seed: int) -> str:
    """Name below RUNS of a run of a task."""
    return f"{name}{_COCO if on_coco else ''}{f'-seed-{seed}' if seed else ''}"


def _predictions(run: str, recipe: TaskRecipe, split: str) -> str:
    """File of predictions; of VCR's two problems one, by the run that learned the first."""
    suffix = {"vcr": "csv", "nlvr2": "csv", "retrieval": "npy"}.get(recipe.task, "json")
    if recipe.task == "vcr" and recipe.options.problem == RATIONALE:
        run = run.replace(RATIONALE, ANSWER, 1)
    return f"RUNS/{run}-{split}.{'tsv' if recipe.task in GLUE_TASKS else suffix}"


def _stores(_name: str, recipe: Recipe | TaskRecipe) -> Iterator[Command]:
    """Downloads of photos, and extractions."""
    if recipe.features is None:
        return
    more = ["coco"] if isinstance(recipe, TaskRecipe) and True in _data_sets(recipe) else []
    for photos in dict.fromkeys((*photos_of(recipe), *more)):
        yield from _extractions(photos, recipe.features)


def _extractions(name: str, features: Features) -> Iterator[Command]:
    photos = PHOTO_SETS[name]
    needs: tuple[str, ...] = ()
    if photos.table:
        needs = (f"photos {name}",)
        yield Command(needs[0], ("download", f"DATA/{photos.table}", f"DATA/{name}/photos"))
    for each in filter(None, (features, features.of_annotated)):
        if each.boxes != "coco":
            yield _extraction(name, each, needs)
            continue
        parts = [_extraction(name, each, needs, part) for part in ("train2014", "val2014")]  # with boxes of its own
        yield from parts
        both, out = tuple(part.words[2] for part in parts), store_of(name, each)
        yield Command(f"store {out}", ("store", "copy", *both, f"STORES/{out}"), tuple(part.key for part in parts))


def _extraction(name: str, features: Features, needs: tuple[str, ...], part: str = "") -> Command:
    store = f"{store_of(name, features)}{part and f'-{part}'}"
    given = {PHOTOS: f"DATA/{PHOTO_SETS[name].source}", STORE: f"STORES/{store}", WEIGHTS: _weights_of(features)}
    given["resnet152=resnet152.pth"] = "resnet152=DATA/weights/resnet152.pth"
    words = [given.get(word, word) for word in shlex.split(replace(features, annotated="").commands[0])[1:]]
    if "--boxes" in words:
        place = words.index("--boxes") + 1
        words[place] = f"DATA/{_folder_of_boxes(words[place])}".replace("train2014", part or "train2014")
    if name == "nlvr2":  # whose images the recipes call by the names of files, as its published features do
        words += ["--id-rule", "with-extension"]
    return Command(f"store {store}", tuple(words), needs, features)


def _weights_of(features: Features) -> str:
    return f"DATA/weights/{features.preset or features.detector}.pkl"


def _folder_of_boxes(file: str) -> str:
    """Folder of a file of boxes, below DATA: that of its data set."""
    if "instances_train2014" in file:
        return f"coco/annotations/{file}"
    return f"vcr/{file}" if file.startswith("vcr1images") else file if "/" in file else f"refcoco+/{file}"


def _made(name: str, recipe: Recipe | TaskRecipe, seed: int) -> Iterator[Command]:
    if isinstance(recipe, Recipe):
        yield _pretraining(name, recipe)
        return
    for each in _both_problems(name, recipe):
        for on_coco in _data_sets(recipe):
            yield _finetuning(each, TASK_RECIPES[each], on_coco, seed)


def _data_sets(recipe: TaskRecipe) -> list[bool]:
    """Whether each run of a recipe is on COCO: of retrieval one on each data set that it has figures of."""
    return sorted({_ON_COCO in each.column for each in recipe.figures}) or [False]


def _pretraining(name: str, recipe: Recipe) -> Command:
    words, needs = ["pretrain", f"RUNS/{name}", "--recipe", name], list[str]()
    assert recipe.features is not None
    own = [(photos, store_of(photos, recipe.features)) for photos in photos_of(recipe)]
    for photos, store in own:
        words += ["--store", f"STORES/{store}"]
        needs.append(f"store {store}")
        if not recipe.task_text:
            words += ["--captions", f"DATA/{PHOTO_SETS[photos].captions}"]
    if recipe.task_text:
        words += [word for file in _task_text(recipe)[1] for word in ("--task-text", f"DATA/{file}")]
    if getattr(recipe.sampling, "told_classes", False):
        instances = [f"coco/annotations/instances_{split}.json" for split in ("train2014", "val2014")]
        objects = ["vcr/vcr1images"] if recipe.task_text else instances
        words += [word for file in objects for word in ("--objects", f"DATA/{file}")]
    words += ["--text-corpus", "DATA/text/corpus.txt"] if recipe.text_corpus else []
    words += _end_to_end(recipe, recipe.after)
    if recipe.after:
        words += ["--from-run", f"RUNS/{recipe.after}"]
        needs.append(f"run {recipe.after}")
    return Command(f"run {name}", tuple(words), tuple(needs))


def _end_to_end(recipe: Recipe | TaskRecipe, start: str) -> list[str]:
    """Options of a run through the detector's network, whose weights a start of that kind brings along."""
    if not recipe.end_to_end:
        return []
    assert recipe.features is not None
    brings = start and RECIPES[start].end_to_end
    return ["--end-to-end", *([] if brings else ["--weights", _weights_of(recipe.features)])]


def _finetuning(name: str, recipe: TaskRecipe, on_coco: bool, seed: int) -> Command:
    run, needs = _run_of(name, on_coco, seed), list[str]()
    words = ["finetune", f"RUNS/{run}", "--task", recipe.task, "--recipe", name]
    if recipe.start == PRETRAINED:
        words += ["--from", f"RUNS/{recipe.model}"]
        needs.append(f"run {recipe.model}")
    else:
        bert = f"hf:google-bert/{RECIPES[recipe.model].start}"
        words += ["--from", "none", *(["--from-bert", bert] if recipe.start == BERT else [])]
    words += ["--data", _data_of(recipe, on_coco), *_stored(recipe, on_coco, needs)]
    words += _end_to_end(recipe, recipe.model if recipe.start == PRETRAINED else "")
    words += ["--seed", str(seed)] if seed else []
    return Command(f"run {run}", tuple(words), tuple(needs))


def _stored(recipe: TaskRecipe, on_coco: bool, needs: list[str]) -> list[str]:
    """Options that name the stores of a task, whose keys are added to `needs`."""
    if recipe.features is None:
        return []
    words, photos = list[str](), "coco" if on_coco else photos_of(recipe)[0]
    second = None if recipe.end_to_end else recipe.features.of_annotated
    for option, features in (("--store", recipe.features), ("--annotated-store", second)):
        if features is not None:
            words += [option, f"STORES/{store_of(photos, features)}"]
            needs.append(f"store {store_of(photos, features)}")
    return words


def _data_of(recipe: TaskRecipe, on_coco: bool) -> str:
    glue = GLUE_TASKS.get(recipe.task)
    folder = recipe.task if glue is None else glue.name
    if recipe.task == "retrieval":
        folder = "coco" if on_coco else "flickr30k"
    return f"DATA/{folder}"


def _measures(name: str, seed: int) -> Iterator[Command]:
    recipe = TASK_RECIPES.get(name)
    if recipe is None:
        yield from _zero_shot(name, RECIPES[name])
        return
    for on_coco in _data_sets(recipe):
        own = (each for each in recipe.figures if each.task != AVERAGED)
        figures = [each for each in own if (_ON_COCO in each.column) == on_coco]
        usual = next(iter(SCORED_TASKS[recipe.task].splits))
        for split in dict.fromkeys(map(_split_of, figures)) or [usual]:
            yield from _scores(name, recipe, on_coco, split, seed)


def _split_of(figure: PaperFigure) -> str:
    parts = figure.column.split(", ")
    split = next((_SPLITS[part] for part in parts if part in _SPLITS), "test")
    return "val" if (parts[0], split) == ("Flickr30k Entities", "dev") else split


def _scores(name: str, recipe: TaskRecipe, on_coco: bool, split: str, seed: int) -> Iterator[Command]:
    """Predictions of a split and their score; a submission is only looked through where a test server scores it."""
    runs = [_run_of(each, on_coco, seed) for each in _both_problems(name, recipe)]
    out, needs = _predictions(runs[0], recipe, split), [f"run {run}" for run in runs]
    stored = _stored(recipe, on_coco, needs)
    data, at = _data_of(recipe, on_coco), ("--split", split)
    folders = [f"RUNS/{run}" for run in runs]
    yield Command(out, ("predict", *folders, "--data", data, *stored, *at, "--out", out), tuple(needs))
    served = recipe.task in ("vqa", "vcr") and split.startswith("test")
    box_rule = getattr(recipe.options, "box_rule", "refer")
    rules = ("--rules", box_rule) if box_rule != "refer" else ()
    score = ("score", recipe.task, out, "--data", data, *at, *(["--check"] * served), *rules)
    yield Command(f"score of {out}", score, (out,))
    if on_coco:  # the 1k test is five parts of the 5k one
        yield Command(f"score of {out}{_IN_FOLDS}", (*score, "--rules", FIVE_FOLDS), (out,))


def _both_problems(name: str, recipe: TaskRecipe) -> tuple[str, ...]:
    """The recipe, or those of both problems of VCR, where each is learned by a model of its own and they are scored
    together."""
    if recipe.task != "vcr" or recipe.options.problem == BOTH:
        return (name,)
    mine = recipe.options.problem
    return tuple(name.replace(mine, each, 1) for each in (ANSWER, RATIONALE))


def _zero_shot(name: str, recipe: Recipe) -> Iterator[Command]:
    """Retrieval by the match head, and grounding by attention."""
    asked, features = [figure.column for figure in recipe.figures], recipe.features
    if features is None:
        return
    for words, photos, folds in (
        ("Flickr30k", "flickr30k", 1), ("COCO (5k)", "coco", 1), (_FIRST_THOUSAND, "coco", 5),
    ):  # fmt: skip
        if any(column.startswith(f"{ZERO_SHOT} {words}") for column in asked):
            yield from _extractions(photos, features)
            store, out = store_of(photos, features), f"RUNS/{name}-{photos}{_IN_FOLDS if folds > 1 else ''}"
            captions = ("--captions", f"DATA/{PHOTO_SETS[photos].captions}", "--split", "test")
            given = ("--store", f"STORES/{store}", *captions, *(["--folds", str(folds)] * (folds > 1)), "--out", out)
            yield Command(out, ("evaluate", f"RUNS/{name}", *given), (f"run {name}", f"store {store}"))
    if any("grounding" in column for column in asked):
        yield from _extractions("flickr30k", features)
        store, out = store_of("flickr30k", features), f"RUNS/{name}-attention"
        entities = ("--entities", "DATA/flickr30k-entities", "--split", "val", "--parses", "spacy", "--out", out)
        given = ("--store", f"STORES/{store}", *entities)
        yield Command(out, ("attention", f"RUNS/{name}", *given), (f"run {name}", f"store {store}"))


@cache
def _official_files() -> Mapping[str, tuple[str, str]]:
    """By folder below DATA the number of photos, "" for none, and publisher and counts as papers print them."""
    with Path(__file__).with_name("official_files.csv").open(encoding="utf-8", newline="") as lines:
        return {name: (photos, words) for name, photos, words in list(csv.reader(lines))[1:]}


# Features and classes of detectron2's networks (docs/detectors.md).
_SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"pythia-x152-fpn": (2048, 1600), "mask-rcnn-r101-fpn": (1024, 80)}
)


class Need(NamedTuple):
    """Something below DATA or STORES, or ELSEWHERE; patterns are those of a file in its folder, or modules."""

    place: str
    name: str
    patterns: tuple[str, ...] = ()


DATA, ELSEWHERE, STORES = PLACES = ("DATA", "", "STORES")


def needs_of(commands: Iterable[Command]) -> list[Need]:
    """Files that commands need and no download among them makes, grouped by folder."""
    commands = list(commands)
    made = {f"{each.words[2]}/local.tsv".removeprefix("DATA/") for each in commands if each.words[0] == "download"}
    has_test = any("DATA/vqa" in each.words and {"test", "test-dev"} & {*each.words} for each in commands)
    needs = {each[:2]: each for one in commands for each in _needs(one, has_test) if each.name not in made}
    return sorted(needs.values(), key=lambda each: (PLACES.index(each.place), each.name))


def _needs(command: Command, has_test: bool) -> Iterator[Need]:
    """Args: has_test: whether VQA's test questions are answered, which alone are on photos of test2015."""
    words = command.words
    for before, word in pairwise(words):
        place = _PLACE.fullmatch(word)
        if place is None or place[2] != DATA or (words[0] == "download" and word == words[2]):
            continue
        name = place[3].rstrip("/")
        if before == "extract" and not name.endswith(".tsv"):
            parts = ("train2014", "val2014", *(["test2015"] * has_test))
            folders = [f"coco/{each}" for each in parts] if name == "coco" else [name]
            photo = "*.png" if name.startswith("nlvr2") else "*.jpg"
            yield from (Need(DATA, f"{each}/{photo}", (f"**/{photo}",)) for each in folders)
        elif before in ("--data", "--entities"):
            for names in _files_of(words, name):
                yield Need(DATA, f"{name}/{names[0]}", (*names, *(f"*/{each}" for each in names)))
        else:
            yield Need(DATA, name)
    stores = (command.key, *command.needs) if words[0] in ("extract", "store") else command.needs
    yield from (Need(STORES, each.removeprefix("store ")) for each in stores if each.startswith("store "))
    start = words[0] == "pretrain" and not {"--from-run", "--toy"} & {*words} and RECIPES[words[3]].start
    hub = [each for each in words if each.startswith("hf:")] + ([f"hf:google-bert/{start}"] if start else [])
    yield from (Need(ELSEWHERE, each) for each in hub)
    if "spacy" in words:
        yield Need(ELSEWHERE, "spaCy, for parses: pip install 'roibeam[parse]'", ("spacy",))
    if command.features is not None and command.features.detector in PUBLISHED_SELECTIONS:
        yield Need(ELSEWHERE, "detectron2: a checkout on PYTHONPATH (docs/detectors.md)", ("detectron2",))
    if words[0] == "score" and words[1] in GLUE_TASKS:
        yield Need(ELSEWHERE, "figures of GLUE: pip install 'roibeam[glue]'", ("scipy", "sklearn"))


def _files_of(words: Sequence[str], folder: str) -> Iterator[tuple[str, ...]]:
    """Names of each file that a command reads in the folder of a task, as its readers look for them."""
    task = next((each for each, glue in GLUE_TASKS.items() if glue.name == folder), folder)
    if task in tasks.REFS:
        yield from ((tasks.REFS[task],), tasks.INSTANCES_NAMES)
        recipe = TASK_RECIPES.get(words[words.index("--recipe") + 1]) if "--recipe" in words else None
        yield from [(tasks.DETECTIONS_NAME,)] * (recipe is not None and recipe.options.boxes == "detected")
        return
    validation = next(iter(SCORED_TASKS[task].splits)) if task in SCORED_TASKS else "val"
    for split in [words[words.index("--split") + 1]] if "--split" in words else ["train", validation]:
        if task in GLUE_TASKS:
            yield f"{split}.tsv", f"{split.replace('dev', 'validation')}*.parquet", "msr_paraphrase_*.txt"
        elif task == "vqa":
            yield (f"v2_OpenEnded_mscoco_{tasks.VQA_YEARS[split]}_questions.json",)
            yield from [(f"v2_mscoco_{tasks.VQA_YEARS[split]}_annotations.json",)] * (not split.startswith("test"))
        elif task == "flickr30k-entities":
            yield from ((f"{split}.txt",), ("Sentences",), ("Annotations",))
        else:
            official = {"vcr": (f"{split}.jsonl",), "nlvr2": (f"{split}.json",)}
            yield official.get(task, (f"dataset_{folder}.json", *FILES.get(split, ())))


def is_there(need: Need, folder: Path) -> bool:
    """Whether modules are installed, or a file or folder, which is not empty, lies below the folder of its place."""
    if need.place == ELSEWHERE:
        return all(map(find_spec, need.patterns))
    path = folder / need.name
    found = (each for name in need.patterns or (path.name,) for each in path.parent.glob(name))
    return any(any(each.iterdir()) if each.is_dir() else each.stat().st_size for each in found)


def missing_of(commands: Iterable[Command], data: Path, stores: Path, named: NamedFiles) -> list[str]:
    """Names of what is not there; the hub is asked, and stores are opened, whose faults are added to `named`."""
    missing = list[str]()
    for need in needs_of(commands):
        folder = stores if need.place == STORES else data
        if need.name.startswith("hf:"):
            named.look(partial(_fetch_bert, need.name))
        elif not is_there(need, folder):
            missing.append(str(folder / need.name) if need.place else need.name)
        elif need.place == STORES:
            named.look(partial(_check_store, folder / need.name))
    return missing


def _fetch_bert(name: str) -> None:
    for names in (("config.json",), BERT_WEIGHTS, ("tokenizer.json", "vocab.txt")):
        fetch_from_hub(name, names)


def _check_store(path: Path) -> None:
    with FeatureStore(path) as store:
        if lines := unfinished_lines([store]):
            raise ValueError(lines[0])


def need_lines(commands: Sequence[Command], folders: Mapping[str, Path | None]) -> Iterator[str]:
    """Lines of text, which say of all that lies in one of the folders, as of `filled`, whether it is there."""
    needs = needs_of(commands)

    def line(need: Need) -> str:
        folder = folders.get(need.place or DATA)
        if need.name.startswith("hf:"):
            return f"{need.name}, from Hugging Face's hub or its cache; a command alone takes a folder, --from-bert"
        return f"{'' if folder is None else 'there    ' if is_there(need, folder) else 'missing  '}{need.name}"

    yield "official files, below DATA:"
    for name, own in groupby((each for each in needs if each.place == DATA), lambda each: each.name.partition("/")[0]):
        task = next((each for each, glue in GLUE_TASKS.items() if glue.name == name), name)
        splits = SCORED_TASKS[task].splits if task in SCORED_TASKS else {}
        counts = ", ".join(f"{split} {count:,}" for split, count in splits.items() if count)
        yield f"  {name}: {_official_files()[name][1]}{f' ({counts})' if counts else ''}"
        yield from (f"    {line(each)}" for each in own)
        if task in SCORED_TASKS:
            folder = filled(f"DATA/{name}", folders)
            yield f"    roibeam data check {task} {folder}    compares its rows with these counts"
    yield from (f"  {line(each)}" for each in needs if each.place == ELSEWHERE)
    yield "stores, of float16 features and class scores:"
    rooms = {each.key.removeprefix("store "): _room(each, each.features) for each in commands if each.features}
    for need in (each for each in needs if each.place == STORES):
        yield f"  {line(need)}: {rooms[need.name][0] if need.name in rooms else 'of the two above'}"
    if known := [size for _, size in rooms.values() if size]:
        yield f"  together at most {byte_count(sum(known))}{', and those not known' * (len(known) < len(rooms))}"
    yield "GPU hours of steps; extraction, predictions and evaluations are not measured:"
    for each in commands:
        if "--recipe" in each.words:
            recipe = TASK_RECIPES.get(each.words[each.words.index("--recipe") + 1])
            found = None if recipe is None else gpu_hours(recipe)
            yield f"  {each.words[1]}: {'not measured' if found is None else f'{found.hours:.2g} on one {found.card}'}"


def _room(command: Command, features: Features) -> tuple[str, int]:
    """Room of a store at most, as a line and in bytes; 0 for not known."""
    name = command.key.removeprefix("store ")
    photos = next((int(n) for each, (n, _) in _official_files().items() if n and name.startswith(f"{each}-")), None)
    config, selection = CONFIGS.get(features.detector), SELECTIONS.get(features.selection)
    width, classes = (config.feature_dim, config.num_classes) if config else _SIZES.get(features.detector, (0, 0))
    if photos is None or not width or selection is None:
        return "not known before", 0
    size = photos * selection.max_regions * (width + classes + 1) * 2
    return f"at most {byte_count(size)}, {photos:,} photos of up to {selection.max_regions} regions", size
