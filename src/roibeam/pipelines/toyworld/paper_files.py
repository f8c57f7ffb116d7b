"""Official files and stores of all published runs, from a toy world: what `roibeam tables --toy` reads.

    FOLDER/world, tasks, entities, perfect    the world, its tasks and the store of all that is in its pictures
    FOLDER/wide                               the same with features as wide as the toy detector's, for runs end to end
    FOLDER/seen                               regions of some pictures by the toy detector, and features of whole ones
    FOLDER/data, FOLDER/stores                links to them, named as in cli/recipe_commands.py

Tasks of GLUE that the world does not draw have its pairs of texts, with labels that follow from them.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines.data.datasets.karpathy import read_captioned
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueCounts, GlueTask, glue_files, read_glue
from roibeam.pipelines.extract.request import ExtractRequest, RequestedDetector, RequestedImages, RequestedRecords
from roibeam.pipelines.finetuning.scored_tasks import DETECTIONS_NAME
from roibeam.pipelines.toyworld.entities import ToyEntities
from roibeam.pipelines.toyworld.perfect_store import FEATURE_DIM, Perception, PerfectStore
from roibeam.pipelines.toyworld.tasks.write_tasks import ToyTasks
from roibeam.pipelines.toyworld.write import write_world

SEED, NUM_IMAGES = 0, 400  # of fewer, COCO's test images are too few for five parts
OF_WHOLE = "-resnet152-of-photo"  # behind the names of stores whose features of whole photos a model reads
QUESTIONS = "v2_OpenEnded_mscoco_val2014_questions.json"
DOWNLOADED = ("conceptual-captions", "sbu", "conceptual-12m")
_TASKS, _OF_BOX = ("vqa", "vcr", "nlvr2", "refcoco+"), ("image_id", "category_id")
_LONG = 9  # words of a text
TOY_WIDTH = 512  # of the toy detector's features


def write_paper_files(folder: Path, stores: Iterable[str], workers: int) -> tuple[Path, Path]:
    """Writes what is missing; returns DATA and STORES. Another process that does so is waited for.

    Args:
        stores: names of stores below STORES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write_all(folder, stores, workers)
    return folder / "data", folder / "stores"


def _write_all(folder: Path, stores: Iterable[str], workers: int) -> None:
    world, tasks, entities = folder / "world", folder / "tasks", folder / "entities"
    write_world(world, seed=SEED, num_images=NUM_IMAGES, workers=workers)
    for each in (
        ToyTasks(str(tasks), world, SEED, NUM_IMAGES),
        ToyEntities(str(entities), world, SEED, NUM_IMAGES),
        PerfectStore(str(folder / "perfect"), world, Perception(), SEED, NUM_IMAGES, tasks),
    ):
        each.write(workers)
    if not (folder / "wide" / "manifest.json").exists():
        _widen(folder / "perfect", folder / "wide", world)
    data = folder / "data"
    links = {f"{name}/{path.name}": path for name in _TASKS for path in (tasks / name).iterdir()}
    links["nlvr2/test2.json"] = tasks / "nlvr2" / "test1.json"
    for year in ("test2015", "test-dev2015"):  # whose answers a test server would have
        links[f"vqa/v2_OpenEnded_mscoco_{year}_questions.json"] = tasks / "vqa" / QUESTIONS
    links |= {name: world / name for name in ("coco", "flickr30k", "text", "vocab.txt")}
    links |= {"flickr30k-entities": entities, "photos": world}
    for name, target in links.items():
        _link(data / name, target)
    # MAttNet's detector finds each annotated box.
    boxes = json.loads((tasks / "refcoco+" / "instances.json").read_text("utf-8"))["annotations"]
    found = [{"box": each["bbox"], **{name: each[name] for name in _OF_BOX}, "score": 0.9} for each in boxes]
    write_bytes_atomically(data / "refcoco+" / DETECTIONS_NAME, json.dumps(found).encode())
    for name, task in GLUE_TASKS.items():
        if (tasks / name).exists():
            _link(data / task.name, tasks / name)
        else:
            _write_task(data / task.name, task, tasks / "rte")
    captions = [(text, each.image) for each in read_captioned(data / "coco", "train")[0] for text in each.captions]
    for name in DOWNLOADED:
        (data / name / "photos").mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{text}\t{image}\n" for text, image in captions)
        write_bytes_atomically(data / name / "photos" / "local.tsv", lines.encode())
    for store in stores:
        of_whole = store.endswith(OF_WHOLE)
        if of_whole and not (folder / "seen" / "manifest.json").exists():
            _extract((world / "coco", world / "flickr30k"), folder / "seen")
        _link(folder / "stores" / store, folder / ("seen" if of_whole else "wide"))


def _widen(perfect: Path, wide: Path, photos: Path) -> None:
    with FeatureStore(perfect) as store:
        zeros = (0, 0), (0, TOY_WIDTH - FEATURE_DIM)
        records = (replace(each, features=np.pad(each.features, zeros)) for each in store)
        write_store(
            wide, records, feature_space=f"{Perception().feature_space}-wide", classes=store.manifest.classes,
            attributes=store.manifest.attributes, photos=photos,
        )  # fmt: skip


def _extract(photos: Sequence[Path], store: Path) -> None:
    # Torch and Beam are imported only where a table needs them.
    from roibeam.pipelines.extract.beam_extraction import run_extract

    toy, whole = RequestedDetector("toy", device="cpu"), RequestedRecords(image_feature="region")
    run_extract(ExtractRequest(RequestedImages(tuple(map(str, photos))), str(store), toy, records=whole))


def _link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(os.path.relpath(target.resolve(), place.parent.resolve()))


def _write_task(folder: Path, task: GlueTask, pairs: Path) -> None:
    """A task whose texts are those of another one, in its official columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in task.rows:
        path, own = folder / f"{split}.tsv", split.partition("_")[0]
        columns = list(task.header) if task.header else [*task.texts, task.label]
        columns = ["index", *task.texts] if own == "test" else columns
        text = io.StringIO()  # another call may be reading the file
        rows = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE)
        rows.writerows([] if task.header and own != "test" else [columns])
        rows.writerows([row[each] for each in columns] for row in _rows(task, pairs, own))
        write_bytes_atomically(path, text.getvalue().encode())


def _rows(task: GlueTask, pairs: Path, split: str) -> Iterator[dict[str, str]]:
    of_pairs = GLUE_TASKS["rte"]
    for row in read_glue(glue_files(pairs, of_pairs, split), of_pairs, split, GlueCounts()):
        is_long = len(row.texts[0].split()) > _LONG
        fits = is_long if len(task.texts) == 1 else row.label == of_pairs.labels[0]
        label = (task.labels[0 if fits else 1 + is_long * (len(task.labels) > 2)]) if task.labels else str(4.5 * fits)
        yield {**dict(zip(task.texts, row.texts, strict=False)), task.label: label, "index": row.id} | {
            each: "" for each in task.header if each not in (*task.texts, task.label)
        }
