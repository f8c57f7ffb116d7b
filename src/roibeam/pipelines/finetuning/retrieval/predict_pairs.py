"""`roibeam predict` of a task that is asked of all pairs: the scores of a split, their ids, their card and their page.

run -> its network, and captions and images of the split -> parts -> FILE, FILE.ids.json, FILE.card.json
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from roibeam.extraction.network.state import weights_digest
from roibeam.features.counted import counted
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.device_choice import choose_device
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.finetuning.cards.card_facts import card_facts, model_facts
from roibeam.pipelines.finetuning.cards.prediction_card import card_lines, write_card
from roibeam.pipelines.finetuning.frame.group_batches import GroupBatches
from roibeam.pipelines.finetuning.frame.predict_request import STORE_MISSING, PredictRequest, check_predict
from roibeam.pipelines.finetuning.frame.predict_run import PredictResult, TrainedTask
from roibeam.pipelines.finetuning.frame.seeds import seeds_of
from roibeam.pipelines.finetuning.frame.shown.joined_groups import StoreImages, check_ids
from roibeam.pipelines.finetuning.results.result_parts import result_lock
from roibeam.pipelines.finetuning.results.retrieval_results import (
    FoldPairs,
    folds_of,
    read_pair_scores,
    retrieval_measures,
    write_ids,
)
from roibeam.pipelines.finetuning.retrieval.pair_scorers import pair_scorer
from roibeam.pipelines.finetuning.retrieval.retrieval_page import write_retrieval_page
from roibeam.pipelines.finetuning.retrieval.score_parts import PairParts, plan_pairs
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.trained_photos import HeldOutWords, SeenBefore, photo_names, seen_before
from roibeam.pipelines.training.model_files.trained_with import check_feature_space
from roibeam.pipelines.training.processes.precision import FLOAT32, computing_in, precision_of

logger = logging.getLogger(__name__)

_PART_FORMAT = 1


def run_pair_prediction(request: PredictRequest) -> PredictResult:
    """Scores every caption of a split with every image, and writes the file.

    Raises:
        ValueError: whatever does not fit, named as the command's option, saying what to do.
    """
    check_predict(request)
    _check_asked(request)
    store_path = request.store
    if store_path is None:
        raise ValueError(STORE_MISSING)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    (found,) = request.checkpoints()
    trained = TrainedTask.read(found, request.data, request.task)
    if trained.photos is not None:
        raise ValueError(
            f"{request.run} was trained end to end, and all pairs are scored on stored features: extract a store with "
            f"its encoder, and fine-tune on that"
        )
    request = replace(request, split=trained.task.asked_split(request.split))
    device = choose_device(request.device)
    logger.info("%s", device.words)
    with FeatureStore(store_path) as store:
        notes = [*request.checkpoint_notes(), *check_feature_space(trained.found, store)]
        captions, images, more, seen = _joined(request, trained, store)
        notes += more
        folds = folds_of([group.id for group in captions], [_called(group) for group in images], request.folds)
        batches = GroupBatches(
            trained.system, trained.network.encoder_config, trained.tokenizer(),
            trained.layout, trained.asked, store, loss=None, task=trained.task, blind=request.blind,
        )  # fmt: skip
        batches.check(captions[0])
        weights = weights_digest(trained.network.module.state_dict())
        precision = precision_of(request.precision, FLOAT32, device.name)
        contents = [weights, store.manifest.content_digest, *([] if precision == FLOAT32 else [precision])]
        with result_lock(request.out, request.page):
            with computing_in(precision, device.name):
                digest = _digest(request, contents, captions)
                made = _scored(request, trained, batches, captions, images, folds, digest, torch.device(device.name))
            if is_main_process():
                facts = model_facts(trained.found, weights, seen, seeds_of(trained.run), precision)
                _write_beside(request, store, captions, images, facts, seen.notes("the model", request.split))
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


def _called(group: TaskGroup) -> str:
    """What the data set calls the image of a group."""
    return str(group.facts["called"])


def _check_asked(request: PredictRequest) -> None:
    """Raises ValueError for what is not asked of pairs."""
    if request.permute_images:
        raise ValueError("--permute-images: retrieval scores every caption with every image already; leave it out")
    if request.second is not None:
        raise ValueError("RUN_2: a file of this task is told by one run; leave it out")


def _joined(
    request: PredictRequest, trained: TrainedTask, store: FeatureStore
) -> tuple[list[TaskGroup], list[TaskGroup], list[str], SeenBefore]:
    """A group for each caption and each image of what is searched, notes, and what of it the model was trained on."""
    what = f"{trained.task.name}, {request.split}"
    with waiting(f"joining {request.split} with the store"):
        read = trained.task.read(request.split)
        check_ids(trained.task, read.groups, what)
        groups = [replace(each, facts={**each.facts, "called": each.images[0]}) for each in read.groups]
        joined = StoreImages(store).join(_chosen(groups, request), what, min_match=1.0)
    seen = seen_before(trained.run, joined.image_ids(), photo_names(HeldOutWords(), store, joined.called))
    captions = list(joined.groups)
    images = list({_called(group): group for group in reversed(captions)}.values())[::-1]
    return captions, images, [*read.notes, *seen.notes(trained.run, request.split)], seen


def _chosen(groups: Sequence[TaskGroup], request: PredictRequest) -> Sequence[TaskGroup]:
    """Those of so many images, drawn by the seed, in their order."""
    images = list(dict.fromkeys(_called(group) for group in groups))
    if not request.max_images or request.max_images >= len(images):
        return groups
    drawn = np.random.default_rng(request.seed).permutation(len(images))[: request.max_images]
    kept = {images[number] for number in drawn}
    return [group for group in groups if _called(group) in kept]


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
    """Parts that this process made; the main one joins them.

    Args:
        digest: of the weights and of what is asked.
    """
    with waiting("laying out captions and images"):
        plan = plan_pairs(batches, captions, images, folds)
    logger.info(
        "%s with %s in %s: %s", counted(len(captions), "caption"), counted(len(images), "image"),
        counted(len(folds), "fold"), counted(plan.num_pairs, "pair"),
    )  # fmt: skip
    module = trained.network.module.to(device)
    parts = PairParts(
        pair_scorer(module), batches, plan, at_once=request.batch_size, device=device, out=request.out, digest=digest
    )
    made = parts.write()
    if is_main_process():
        parts.join(len(captions))
        write_ids(request.out, [group.id for group in captions], [_called(group) for group in images], request.folds)
    return made


def _digest(request: PredictRequest, contents: Sequence[str], captions: Sequence[TaskGroup]) -> str:
    """Twelve hexadecimal digits of the weights, the store, and of what is asked."""
    found = hashlib.sha256(repr([*contents, request.split, request.blind, request.folds, _PART_FORMAT]).encode())
    for group in captions:
        found.update(repr((group.id, group.images, group.rows[0].parts[0].text)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:12]


def _write_beside(
    request: PredictRequest,
    store: FeatureStore,
    captions: Sequence[TaskGroup],
    images: Sequence[TaskGroup],
    facts: Mapping[str, Any],
    remarks: Sequence[str],
) -> None:
    """The card of the file, and the page where one is asked for.

    Args:
        facts: of the model.
        remarks: for the page.
    """
    scores = read_pair_scores(request.out)
    measures = retrieval_measures(scores)
    main = next(iter(measures.values()))
    told = {"measure": main.name, "judged": len(main.values), "sum": sum(main.values), "best_sum": len(main.values)}
    settings = {name: getattr(request, name) for name in ("blind", "seed", "max_images", "folds", "batch_size")}
    card: dict[str, Any] = card_facts(
        store, [facts], told, rows=len(captions),
        split=request.split, asked=settings, annotated=None, command=request.command,
    )  # fmt: skip
    write_card(request.out, card)
    if request.page is not None:
        write_retrieval_page(
            request.page, f"Retrieval of {request.out.name}", scores, {_called(each): each for each in images},
            [str(group.rows[0].parts[0].text) for group in captions], measures, store, facts=card_lines(card),
            remarks=remarks,
        )  # fmt: skip
