"""Search of a store: photos by a sentence, regions by a region, photos by a photo; printed, and drawn on a page.

sentence -> [photos whose words fit] -> a model scores each, or its vector is compared -> the best -> page
region, photo -> vectors -> [an index chooses photos] -> exact cosines, block by block -> the best -> page

Files and names are checked before torch is imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.weights.named_model import NamedModel
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.record.fingerprint import has_classes
from roibeam.features.record.region_drawing import name_of, strongest
from roibeam.features.shard.layout import RegionMeta
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.analysis.requests import SearchRequest
from roibeam.pipelines.analysis.vector_search import REGIONS, WHOLE, Hit, nearest, opened_index, scanned
from roibeam.pipelines.common.charts import DrawnBox, box_canvas
from roibeam.pipelines.common.compute import check_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, NamedFiles
from roibeam.pipelines.common.image_ids import forms_of
from roibeam.pipelines.common.page_layout import check_page_file, rendered
from roibeam.pipelines.common.statistics.verdict import sentence_of, verdict_of
from roibeam.pipelines.data.captions.caption_files import read_annotations
from roibeam.pipelines.extract.one_photo import not_there
from roibeam.pipelines.extract.store_page import config_part, warning_of_store
from roibeam.pipelines.finetuning.requests import FINETUNING
from roibeam.pipelines.finetuning.run.finetune_request import best_of_seeds
from roibeam.pipelines.finetuning.run.predict_request import predicts_pairs, reads_photos, task_checkpoint
from roibeam.pipelines.training.model_files.model_folder import FoundModel, model_folder
from roibeam.pipelines.training.run_folder.folder import saved_config
from roibeam.pipelines.training.run_folder.run_summary import read_summary
from roibeam.pipelines.training.run_folder.stages import furthest_stage

_INDEX_FROM = 100_000  # photos above which an index is advised
_BOXES, _CLASSES = 6, 4  # of a photo that are drawn, and named
_FOUND, _OTHER = "#d55e00", "#2a78c8"


@dataclass(frozen=True)
class SearchResult:
    """
    Attributes:
        query: what was looked for, and by what, in words.
        found: the best first: "rank", "score", "image_id", "region" (number; None for a photo), "class", "caption".
        searched: photos among which they are the best.
    """

    query: str
    found: tuple[dict[str, Any], ...]
    searched: int
    seconds: float
    notes: tuple[str, ...]


def search_store(request: SearchRequest) -> SearchResult:
    """The best photos or regions of a store; writes the page if requested. The cost is logged first."""
    run, begin, notes = _checked(request), time.monotonic(), list[str]()
    with FeatureStore(request.store) as store:
        if request.model is None:
            hits, by, searched = *_by_vector(request, store, notes), len(store)
        else:
            from roibeam.pipelines.analysis.sentence_scores import match_scores

            ids = list(store.ids())
            if request.among is not None:
                ids = photos_by_words(store, request.text, request.among, notes)
            scores = match_scores(request, run, store, ids, notes)
            notes += _of_matching(Path(request.model), is_task=run is not None)
            best = np.argsort(-scores, kind="stable")[: request.top]
            hits, by, searched = [Hit(ids[each], WHOLE, float(scores[each])) for each in best], request.model, len(ids)
        query = f"{request.text or request.region or request.photo}, by {by}"
        found = tuple(_described(store, hits))
        result = SearchResult(query, found, searched, round(time.monotonic() - begin, 2), tuple(notes))
        if request.html is not None:
            _write_page(request.html, result, store, request.photos)
    return result


def _by_vector(request: SearchRequest, store: FeatureStore, notes: list[str]) -> tuple[list[Hit], str]:
    """The nearest by cosine, and what was compared."""
    which, records = REGIONS, None
    if request.region is not None:
        image_id, region = _stored_region(store, request.region)
        queries = store.get(image_id, check=True).features[region : region + 1]
    else:
        from roibeam.pipelines.analysis.sentence_scores import photo_vectors, sentence_vector

        queries, which = (photo_vectors if request.photo else sentence_vector)(request, store)
    if request.index is not None and find_spec("faiss") is None:
        notes.append("faiss is not installed, so every vector is compared: pip install 'roibeam[search]' for --index")
    elif request.index is not None:
        index = opened_index(request.index, store, which)
        records = index.records(store, queries, request.top, 1 if request.region else request.top)
        notes.append(index.words)
    elif not request.text and len(store) > _INDEX_FROM:
        notes.append("every vector was compared; --index FILE makes later searches short")
    hits = nearest(records or scanned(store), queries, request.top, which, by_photo=request.region is None)
    return hits, f"cosines with {which}"


def _checked(request: SearchRequest) -> FoundModel | None:
    """The checkpoint of a run of retrieval, None for another search; ValueError lists all that is wrong."""
    named, run = NamedFiles(), None
    has_store, has_model = named.need("STORE", request.store), named.need("--model", request.model, FOLDER)
    named.need("--photo", request.photo, FILE)
    named.need("--photos", request.photos, FOLDER)
    named.look(lambda: check_device(request.device))
    if request.html is not None:
        named.look(lambda: check_page_file("--html", Path(str(request.html))))
    named.need_output_folder(request.index and request.index.parent)
    if sum(map(bool, (request.text.strip(), request.region, request.photo))) != 1:
        named.refuse('give one thing to look for: a sentence, such as "a dog on a beach", or --region, or --photo')
    for option, is_used, goes_with in (
        ("model", request.text, "a sentence"),
        ("among", request.model, "--model"),
        ("index", not request.text, "--region and --photo"),
        ("detector", request.photo, "--photo"),
        ("weights", request.photo, "--photo"),
        ("backbone", not request.model and not request.region, "--photo, and a sentence alone"),
    ):
        if getattr(request, option) is not None and not is_used:
            named.refuse(f"--{option} goes with {goes_with}; leave it out")
    if request.model is not None and has_model:
        run = named.look(lambda: _run_of_retrieval(Path(str(request.model))))
    if has_store:
        named.look(lambda: _check_store(request))
    named.check()
    return run


def _of_matching(model: Path, *, is_task: bool) -> list[str]:
    """Meaning of the scores, and a warning where the last evaluation of the run was not better than chance at them."""
    notes = [] if is_task else ["a score above 0 means that the model takes sentence and photo for a pair"]
    summary = read_summary(furthest_stage(model))
    poor = [
        sentence_of(figure)
        for figure in (() if summary is None else summary.figures)
        if figure.name in ("matching_accuracy", "text_to_image_r1")
        and verdict_of(figure) in ("at chance", "below chance")
    ]
    return [*notes, *(f"the last evaluation of {model}: {each}; the order means little" for each in poor)]


def _run_of_retrieval(model: Path) -> FoundModel | None:
    """The checkpoint of a fine-tuned run, which must be of retrieval; None for another model."""
    config = model_folder(best_of_seeds(model))[0].parent
    if not (config / "state.json").is_file() or saved_config(config)["task"].get("kind") != FINETUNING:
        return None
    found = task_checkpoint(model)
    if not predicts_pairs(found) or reads_photos(found):
        learned = f"{saved_config(config)['task']['task']}{' from photos' if reads_photos(found) else ''}"
        raise ValueError(
            f"--model {model}: learned {learned}, which scores no sentence with stored features; name a run of "
            f"finetune --task retrieval on a store, or of pretrain with a match head"
        )
    return found


def _check_store(request: SearchRequest) -> None:
    with FeatureStore(request.store) as store:
        if not len(store):
            raise ValueError(f"{store.path} holds no photo to search")
        if request.region:
            _stored_region(store, request.region)
        recorded = config_part(config_part(store.manifest.config, "detector"), "backbone").get("name", "")
    if not request.text or request.model:
        return
    for name in (recorded, request.backbone or recorded):
        if not name.startswith("hf:") or NamedModel(name).part != "projection":
            raise ValueError(
                f"{name or store.path}: has no text network; name a model with --model RUN, or search a store that was "
                f"extracted with --backbone hf:ID#projection, such as a CLIP's"
            )
    if request.backbone is None:  # nothing is loaded because a store says so
        raise ValueError(f"{store.path} was made by {recorded}: give it again, --backbone {recorded}")


def _stored_region(store: FeatureStore, named: str) -> tuple[str, int]:
    """Image id and number of ID:N."""
    name, _, number = named.rpartition(":")
    if not number.isdecimal() or not name:
        raise ValueError(f"--region {named!r}: expected ID:N, an image of the store and the number of a region")
    image_id = next((each for each in forms_of(name) if each in store), None)
    if image_id is None:
        raise ValueError(f"--region: {not_there(store, name)}")
    if int(number) >= (count := store.meta(image_id).num_regions):
        raise ValueError(f"--region {named!r}: the image has {count} regions, from 0; roibeam store show lists them")
    return image_id, int(number)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def photos_by_words(store: FeatureStore, text: str, count: int, notes: list[str]) -> list[str]:
    """Photos whose captions and class names share the most and rarest words with a sentence, in the store's order."""
    words, places = sorted(_words(text)), {each: place for place, each in enumerate(store.ids())}
    has_PW = np.zeros((len(places), len(words)), bool)
    for row in read_annotations(store):
        own = _words(" ".join((*row.captions, *row.labels)))
        has_PW[places[row.image_id]] = [word in own for word in words]
    classes = store.manifest.classes or () if has_classes(store.fingerprint) else ()
    named_CW = np.array([[word in _words(name) for word in words] for name in classes], bool)
    for image_id, place in places.items() if named_CW.any() else ():
        has_PW[place] |= named_CW[store.meta(image_id).class_ids].any(axis=0)
    if not has_PW.any():
        raise ValueError(f"--among: no caption and no class name in {store.path} has a word of it; leave it out")
    photos_W = has_PW.sum(axis=0)
    scores = has_PW @ np.log(1 + len(places) / np.maximum(photos_W, 1))
    kept, ids = np.sort(np.argsort(-scores, kind="stable")[: min(count, np.count_nonzero(scores))]), list(places)
    used = ", ".join(f"{word} ({number:,})" for word, number in zip(words, photos_W, strict=True) if number)
    notes.append(f"chose {len(kept):,} of {plural(len(ids), 'photo')} by words of captions and class names: {used}")
    return [ids[place] for place in kept]


def _names(store: FeatureStore, meta: RegionMeta, found: int | None, most: int) -> dict[str, int]:
    """Best region of each class, by its name, the region found first; numbers in a store without classes."""
    best: dict[str, int] = {}
    for region in ([] if found is None else [found]) + strongest(meta.class_scores, meta.num_regions):
        name = name_of(int(meta.class_ids[region]), store.manifest.classes, "class")
        best.setdefault(name if has_classes(store.fingerprint) else str(region), region)
    return dict(list(best.items())[:most])


def _described(store: FeatureStore, hits: list[Hit]) -> Iterator[dict[str, Any]]:
    """Rows of the result: with the class of the region, else the best classes, and the first caption."""
    wanted = {hit.image_id for hit in hits}
    rows = (row for row in read_annotations(store) if row.image_id in wanted and row.captions)
    captions = {row.image_id: row.captions[0] for row in rows}
    for rank, hit in enumerate(hits, start=1):
        region = None if hit.region == WHOLE else hit.region
        names = ", ".join(_names(store, store.meta(hit.image_id), region, _CLASSES if region is None else 1))
        yield {
            "rank": rank, "score": hit.score, "image_id": hit.image_id, "region": region,
            "class": names if has_classes(store.fingerprint) else None, "caption": captions.get(hit.image_id),
        }  # fmt: skip


def _write_page(path: Path, result: SearchResult, store: FeatureStore, photos: str | None) -> None:
    """Writes the page, whole or not at all: photos or grey sheets with the best box of each class and the found one."""
    from roibeam.pipelines.data.batches.image_batch import stored_photos

    jpegs = stored_photos([store], (row["image_id"] for row in result.found), photos)
    found = []
    for row in result.found:
        meta, (jpeg, why), boxes = store.meta(row["image_id"]), jpegs[row["image_id"]], []
        for name, region in _names(store, meta, row["region"], _BOXES).items():
            colour, line = (_FOUND, 3.0) if region == row["region"] else (_OTHER, 1.75)
            boxes.append(DrawnBox(tuple(meta.boxes[region].tolist()), colour, name, line=line))
        words = f"{row['rank']}: {row['score']:.3f}"
        canvas = box_canvas(boxes, (meta.height, meta.width), jpeg, description=f"{words}, {row['image_id']}")
        found.append((words, row, canvas, "" if jpeg is not None else why))
    summary = [f"The best of {plural(result.searched, 'photo')} for: {result.query}.", *result.notes]
    page = rendered(
        "search.html", title="Search", summary=summary, warning=warning_of_store(store.manifest), found=found
    )
    write_bytes_atomically(path, page.encode("utf-8"))
