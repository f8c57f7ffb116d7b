"""`roibeam predict` of retrieval: the scores of all pairs of a split, their ids, their card and their page.

run -> its network, and captions and images of the split -> parts -> FILE, FILE.ids.json, FILE.card.json

The page has captions, the five pictures that score best with each, the right one framed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from roibeam.extraction.network.state import weights_digest
from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.charts import box_canvas
from roibeam.pipelines.common.compute import choose_device, is_main_process
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.page_layout import page_sections, rendered
from roibeam.pipelines.data.batches.image_batch import PhotoOrReason, stored_photos
from roibeam.pipelines.data.compatibility import HeldOutOptions
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.finetuning.held_out_images import SeenBefore, photo_names, seen_before
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.retrieval import (
    FoldPairs,
    PairScores,
    best_images,
    fold_ranks,
    folds_of,
    read_pair_scores,
    retrieval_measures,
    retrieval_numbers,
    write_ids,
)
from roibeam.pipelines.finetuning.prediction_card import card_lines, write_card
from roibeam.pipelines.finetuning.requests import PredictRequest
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.pair_scores import PairParts, pair_scorer, plan_pairs
from roibeam.pipelines.finetuning.run.predict_request import (
    STORE_MISSING,
    check_predict,
    checkpoint_notes,
    checkpoints_of,
)
from roibeam.pipelines.finetuning.run.predict_run import PredictResult, TrainedTask, card_facts, model_facts
from roibeam.pipelines.finetuning.run.result_parts import result_lock
from roibeam.pipelines.finetuning.run.task_data import StoreImages, check_ids
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.train_config import FLOAT32, autocast_to, precision_of

TOP = 5
_QUERIES = 6  # of a section


@dataclass(frozen=True)
class _Query:
    """One caption.

    Attributes:
        rank: of its own image, from 1, ties against it.
        found: numbers of the displayed images and their scores; the right one last where it is not among the best.
        right: number of its own image.
    """

    caption: str
    text: str
    rank: int
    found: Sequence[tuple[int, float]]
    right: int


def _chance(measure: Measure) -> str:
    return "" if measure.guess is None else f" (chance {100 * measure.guess():.1f} %)"


def write_retrieval_page(
    path: Path,
    title: str,
    scores: PairScores,
    groups: Mapping[str, TaskGroup],
    texts: Sequence[str],
    measures: Mapping[str, Measure],
    store: FeatureStore,
    *,
    facts: Sequence[tuple[str, str]],
    remarks: Sequence[str],
) -> None:
    """Writes the page, whole or not at all; it stays below 2 MB.

    Args:
        groups: image id of the scores -> a group whose first image is its id in the store.
        facts: of the card, name and value.
    """
    numbers = retrieval_numbers(scores)
    summary = (
        f"{plural(len(scores.captions), 'caption')} with {plural(len(scores.images), 'image')}"
        f"{'' if scores.folds == 1 else f' in {scores.folds} parts'}: "
        f"{', '.join(f'{name} {each.percent:.1f} %{_chance(each)}' for name, each in measures.items())}; "
        f"{', '.join(f'{name} {value:,.1f}' for name, value in numbers.items())}."
    )
    queries = _chosen_queries(scores, texts)
    ids = {image: group.images[0] for image, group in groups.items()}
    names = [scores.images[number] for each in queries.values() for query in each for number, _ in query.found]
    photos = stored_photos([store], dict.fromkeys(ids[name] for name in names))
    page = rendered(
        "retrieval.html", title=title, summary=[summary], warning=warning_of_store(store.manifest), remarks=remarks,
        queries=page_sections(
            [(name, "", each) for name, each in queries.items()],
            lambda query: rendered(
                "retrieval_query.html", query=query, images=list(_images(query, scores, ids, store, photos))
            ),
        ),
        facts=facts,
    )  # fmt: skip
    write_bytes_atomically(path, page.encode("utf-8"))


def _chosen_queries(scores: PairScores, texts: Sequence[str]) -> dict[str, list[_Query]]:
    """Captions to display, one of an image: at even steps through those with rank 1, and those with the worst ranks."""
    queries = []
    for fold, ranks in fold_ranks(scores):
        for place, rank in enumerate(ranks.text_to_image):
            queries.append((int(rank), fold, place))
    order = np.argsort([rank for rank, _, _ in queries], kind="stable")
    of_image = [_image(fold, place) for _, fold, place in queries]
    first = _one_per_image([int(number) for number in order if queries[number][0] == 1], of_image)
    found = first[:: max(1, len(first) // _QUERIES)][:_QUERIES]
    missed = _one_per_image([int(number) for number in order[::-1] if queries[number][0] > TOP], of_image)[:_QUERIES]
    made: dict[str, list[_Query]] = {}
    for name, numbers in (("Found at once", found), ("Missed by the most", missed)):
        made[name] = []
        for number in numbers:
            rank, fold, place = queries[number]
            row, right = int(fold.captions[place]), _image(fold, place)
            best = best_images(scores, fold, place, TOP)
            if right not in [image for image, _ in best]:
                column = right if scores.folds == 1 else int(fold.image_of_caption[place])
                best.append((right, float(scores.scores[row, column])))
            made[name].append(_Query(scores.captions[row], texts[row], rank, best, right))
    return made


def _image(fold: FoldPairs, place: int) -> int:
    """Number of the image of a fold's caption."""
    return int(fold.images[fold.image_of_caption[place]])


def _one_per_image(numbers: Sequence[int], image_of: Sequence[int]) -> list[int]:
    return list({image_of[number]: number for number in reversed(numbers)}.values())[::-1]


def _images(
    query: _Query, scores: PairScores, ids: Mapping[str, str], store: FeatureStore, photos: Mapping[str, PhotoOrReason]
) -> Iterator[tuple[str, bool, str, Markup, str]]:
    """Name of each found image, whether it is the right one, its rank in words, its canvas, and why it has no photo."""
    for place, (number, score) in enumerate(query.found):
        image = scores.images[number]
        meta = store.meta(ids[image])
        jpeg, why = photos.get(ids[image], (None, "the store has no such image"))
        is_right = number == query.right
        rank = place + 1 if place < TOP else query.rank
        words = f"rank {rank:,}{', the right one' if is_right else ''}, score {score:.3f}"
        canvas = box_canvas([], (meta.height, meta.width), jpeg, description=f"{image}: {words}")
        yield image, is_right, words, canvas, why if jpeg is None else ""


logger = logging.getLogger(__name__)

_PART_FORMAT = 1


def run_pair_prediction(request: PredictRequest) -> PredictResult:
    """Scores every caption of a split with every image, and writes the file. Raises ValueError for a request that does
    not fit; the message names the command's option and what to do."""
    check_predict(request)
    if request.permute_images:
        raise ValueError("--permute-images: retrieval scores every caption with every image already; leave it out")
    if request.run_2 is not None:
        raise ValueError("RUN_2: one run predicts the whole file of this task; leave it out")
    store_path = request.store
    if store_path is None:
        raise ValueError(STORE_MISSING)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    (found,) = checkpoints_of(request)
    trained = TrainedTask.read(found, request.data, request.task)
    if trained.photos is not None:
        raise ValueError(
            f"{request.run} was trained end to end, and all pairs are scored on stored features: extract a store with "
            f"its encoder, and fine-tune on that"
        )
    request = replace(request, split=trained.task.resolve_split(request.split))
    device = choose_device(request.device)
    logger.info("%s", device.words)
    with FeatureStore(store_path) as store:
        notes = [*checkpoint_notes(request), *check_feature_space(trained.found, store)]
        captions, images, more, seen = _joined(request, trained, store)
        notes += more
        folds = folds_of([group.id for group in captions], [_image_name(group) for group in images], request.folds)
        batches = trained.batches(store, trained.tokenizer(), blind=request.blind)
        batches.check(captions[0])
        weights = weights_digest(trained.network.module.state_dict())
        precision = precision_of(request.precision, FLOAT32, device.name)
        contents = [weights, store.manifest.content_digest, *([] if precision == FLOAT32 else [precision])]
        with result_lock(request.out, request.page):
            with autocast_to(precision, device.name):
                digest = _digest(request, contents, captions)
                made = _scored(request, trained, batches, captions, images, folds, digest, torch.device(device.name))
            if is_main_process():
                facts = model_facts(trained, weights, seen, precision)
                _write_card(request, store, captions, images, facts, seen.notes("the model", request.split))
    return PredictResult(
        request.out,
        trained.task.name,
        request.split,
        len(captions),
        len(captions),
        0,
        made,
        trained.found.source,
        tuple(notes),
        request.page,
    )


def _image_name(group: TaskGroup) -> str:
    """The data set's name of a group's image."""
    return str(group.facts["called"])


def _joined(
    request: PredictRequest, trained: TrainedTask, store: FeatureStore
) -> tuple[list[TaskGroup], list[TaskGroup], list[str], SeenBefore]:
    """A group for each caption and each image, notes, and the images that the model was trained on."""
    what = f"{trained.task.name}, {request.split}"
    with waiting(f"joining {request.split} with the store"):
        read = trained.task.read(request.split)
        check_ids(trained.task, read.groups, what)
        groups = [replace(each, facts={**each.facts, "called": each.images[0]}) for each in read.groups]
        joined = StoreImages(store).join(_chosen(groups, request), what, min_match=1.0)
    seen = seen_before(trained.run, joined.image_ids(), photo_names(HeldOutOptions(), store, joined.called))
    captions = list(joined.groups)
    images = list({_image_name(group): group for group in reversed(captions)}.values())[::-1]
    return captions, images, [*read.notes, *seen.notes(trained.run, request.split)], seen


def _chosen(groups: Sequence[TaskGroup], request: PredictRequest) -> Sequence[TaskGroup]:
    """Groups of `max_images` images, drawn by the seed, in their order."""
    images = list(dict.fromkeys(_image_name(group) for group in groups))
    if not request.max_images or request.max_images >= len(images):
        return groups
    drawn = np.random.default_rng(request.seed).permutation(len(images))[: request.max_images]
    kept = {images[number] for number in drawn}
    return [group for group in groups if _image_name(group) in kept]


def _scored(
    request: PredictRequest,
    trained: TrainedTask,
    batches: GroupBatches,
    captions: Sequence[TaskGroup],
    images: Sequence[TaskGroup],
    folds: Sequence[FoldPairs],
    digest: str,
    device: torch.device,
) -> int:
    """Number of parts that this process made; the main one joins them."""
    with waiting("laying out captions and images"):
        plan = plan_pairs(batches, captions, images, folds)
    logger.info(
        "%s with %s in %s: %s", plural(len(captions), "caption"), plural(len(images), "image"),
        plural(len(folds), "fold"), plural(plan.num_pairs, "pair"),
    )  # fmt: skip
    module = trained.network.module.to(device)
    parts = PairParts(
        pair_scorer(module), batches, plan, at_once=request.batch_size, device=device, out=request.out, digest=digest
    )
    made = parts.write()
    if is_main_process():
        parts.join(len(captions))
        write_ids(
            request.out, [group.id for group in captions], [_image_name(group) for group in images], request.folds
        )
    return made


def _digest(request: PredictRequest, contents: Sequence[str], captions: Sequence[TaskGroup]) -> str:
    """Twelve hexadecimal digits of the digest of weights, store and request."""
    found = hashlib.sha256(repr([*contents, request.split, request.blind, request.folds, _PART_FORMAT]).encode())
    for group in captions:
        found.update(repr((group.id, group.images, group.rows[0].parts[0].text)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:12]


def _write_card(
    request: PredictRequest,
    store: FeatureStore,
    captions: Sequence[TaskGroup],
    images: Sequence[TaskGroup],
    facts: Mapping[str, Any],
    remarks: Sequence[str],
) -> None:
    """Writes the card of the file, and the page if requested."""
    scores = read_pair_scores(request.out)
    measures = retrieval_measures(scores)
    main = next(iter(measures.values()))
    summary = {"measure": main.name, "judged": len(main.values), "sum": sum(main.values), "best_sum": len(main.values)}
    settings = {
        "blind": request.blind, "seed": request.seed, "max_images": request.max_images or 0, "folds": request.folds,
        "batch_size": request.batch_size,
    }  # fmt: skip
    card: dict[str, Any] = card_facts(
        store, [facts], summary, rows=len(captions),
        split=request.split, settings=settings, annotated=None, command=request.command,
    )  # fmt: skip
    write_card(request.out, card)
    if request.page is not None:
        write_retrieval_page(
            request.page, f"Retrieval of {request.out.name}", scores, {_image_name(each): each for each in images},
            [str(group.rows[0].parts[0].text) for group in captions], measures, store, facts=card_lines(card),
            remarks=remarks,
        )  # fmt: skip
