"""Predictions of a fine-tuned model in a task's official format, part by part, so that a run can go on, and their card.

    OUT.parts-<digest>/part-00003.json     entries of the result file of 1,024 groups; there whole or not at all
    OUT.parts-<digest>/part-00003.npy      their scores, with --scores; written after the entries
    OUT                                    all of them, written when the last part is there; then the parts go
    SCORES.npz                             the scores of all, see metrics/own_labels.py
    OUT.card.json                          model, inputs and training data, see prediction_card.py

The digest is of the weights and of all of the request. Of several processes each makes every n-th part; batches do not
cross parts, so the file does not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from roibeam.extraction.network.state import weights_digest
from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.common.compute import choose_device, is_main_process
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.compatibility import HeldOutOptions
from roibeam.pipelines.data.feature_settings import boxes_words
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.finetuning.held_out_images import SeenBefore, photo_names, seen_before
from roibeam.pipelines.finetuning.metrics.measure import is_csv, write_csv_entries
from roibeam.pipelines.finetuning.metrics.own_labels import check_texts, write_label_scores
from roibeam.pipelines.finetuning.prediction_card import card_lines, write_card
from roibeam.pipelines.finetuning.requests import PredictRequest
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup
from roibeam.pipelines.finetuning.run.finetune_request import PhotoRequest, seeds_of
from roibeam.pipelines.finetuning.run.finetune_run import digest_of_labels
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.group_images import GroupPhotos
from roibeam.pipelines.finetuning.run.group_task import predicted
from roibeam.pipelines.finetuning.run.network import TaskNetwork, read_network
from roibeam.pipelines.finetuning.run.predict_request import (
    check_predict,
    checkpoint_notes,
    checkpoints_of,
    reads_photos,
)
from roibeam.pipelines.finetuning.run.prediction_page import (
    chance_of,
    joined_parts,
    probability_of,
    summarize_predictions,
    write_prediction_page,
)
from roibeam.pipelines.finetuning.run.result_parts import ResultParts, result_lock
from roibeam.pipelines.finetuning.run.task_data import (
    JoinedGroups,
    MissingImages,
    StoreImages,
    StorePair,
    check_annotated,
    check_ids,
    check_num_boxes,
    opened_store,
    with_missing,
)
from roibeam.pipelines.finetuning.scored_tasks import resolve_task
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec, TaskSystem
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.named_tasks import task_named
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.model_files.model_checkpoint import naming_model
from roibeam.pipelines.training.model_files.model_folder import FoundModel, check_model_sums
from roibeam.pipelines.training.model_files.provenance import check_feature_space, check_tokenizer, trained_with
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.run_folder.folder import saved_config
from roibeam.pipelines.training.run_folder.run_summary import origins
from roibeam.pipelines.training.train_config import FLOAT32, autocast_to, precision_of, trained_precision
from roibeam.version import __version__


def model_facts(trained: TrainedTask, weights: str, seen: SeenBefore, precision: str) -> dict[str, Any]:
    """Card facts of one model: its folder, training data and start, and the images of the split that it has seen."""
    found = trained.found
    saved = saved_config(found.source.parent)
    described, recorded = saved["task"], saved["recorded"]
    return {
        "task": described["task"],
        "options": described["task_options"],
        "model": {
            "folder": str(found.source), "weights": weights, "step": trained_with(found).step,
            "system": described["system"], "seed": saved["train"].get("seed"), "seeds": seeds_of(trained.run),
            "trained_on": recorded.get("data"), "precision": precision, "learned_in": trained_precision(saved["train"]),
            **{name: recorded.get(name) for name in ("start", "recipe", "toy", "trained_groups", "notes")},
            "started_from": "; ".join(f"{words}" for words in origins(saved).values()),
        },
        "leaks": {**seen.to_json(), "start_is_known": bool(recorded.get("start_tells_images"))},
        "command": recorded.get("command"),
    }  # fmt: skip


def card_facts(
    store: FeatureStore | None,
    models: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    *,
    rows: int,
    split: str,
    settings: Mapping[str, Any],
    annotated: str | None,
    command: str,
) -> dict[str, Any]:
    """The card, see prediction_card.py.

    Args:
        store: of the images; None of a task of texts alone.
        models: `model_facts` of each model; a second one answers another problem of the task.
        summary: of `joined_parts`.
        rows: number of predicted groups.
        settings: fields of the request that change predictions.
        annotated: second store; None for none.
        command: as it was typed.
    """
    first, second = models[0], models[1] if len(models) > 1 else None
    return {
        "split": split,
        "asked": dict(settings),
        **{name: first[name] for name in ("task", "options", "model", "leaks")},
        "second": None if second is None else {name: second[name] for name in ("options", "model", "leaks")},
        "store": {} if store is None else {
            "path": str(store.path), "content": store.manifest.content_digest,
            "feature_space": store.fingerprint.feature_space,
            "boxes": boxes_words(store.fingerprint) or f"not told ({store.fingerprint.feature_space[:60]})",
            "annotated": annotated,
        },
        "rows": rows,
        "told": {name: value for name, value in summary.items() if name != "rows"},
        "commands": [each for each in (*(model["command"] for model in models), command) if each],
        "torch": torch.__version__,
        "roibeam": __version__,
    }  # fmt: skip


logger = logging.getLogger(__name__)

PART_GROUPS = 1024
_PART_FORMAT = 4


@dataclass(frozen=True)
class PredictResult:
    """
    Attributes:
        out: result file; it is there in the main process alone, when the others may still be ending.
        groups: questions, statements or expressions in it.
        judged, unjudged: those whose right answer is known, and the others; of phrase grounding, phrases.
        made: parts that this process made; the others were there, or are another's.
        page: the page; None for none.
        scores: the file of scores; None for none.
    """

    out: Path
    task: str
    split: str
    groups: int
    judged: int
    unjudged: int
    made: int
    checkpoint: Path
    notes: tuple[str, ...]
    page: Path | None = None
    scores: Path | None = None


@dataclass(frozen=True, eq=False)
class TrainedTask:
    """A fine-tuned model with the settings of its run.

    Attributes:
        photos: how it reads photos; None for one on stored features.
    """

    found: FoundModel
    network: TaskNetwork
    system: TaskSystem
    output: OutputSpec
    layout: LayoutOptions
    task: DownstreamTask
    run: Path
    photos: PhotoRequest | None = None

    @classmethod
    def read(cls, found: FoundModel, data: Path, task_file: str | None = None) -> TrainedTask:
        """
        Args:
            data: folder with the files of its task.
        """
        check_model_sums(found.source)
        config = found.source.parent / "config.json"
        saved = saved_config(config.parent)
        described, labels = saved["task"], saved["recorded"].get("labels", [])
        if digest_of_labels(labels) != described["labels"]:
            raise ValueError(f"{config}: its labels are not those that the model learned")
        named = task_named(resolve_task(described, task_file))
        with naming_model(config):
            options, layout = named.options(**described["task_options"]), LayoutOptions(**described["layout"])
            system = SYSTEMS[described["system"]]
            photos = PhotoRequest(**described["photos"]) if reads_photos(found) else None
        task = named.open(data, options, labels or None)
        output = OutputSpec(described["form"], len(labels) or 1, described["num_images"], task.whole_image)
        network = read_network(found.source, system, output)
        return cls(found, network, system, output, layout, task, found.source.parents[2], photos)

    def tokenizer(self) -> CaptionTokenizer:
        """The tokenizer of its run. Raises ValueError if the model was trained with another one."""
        own = load_tokenizer(str(self.run / "tokenizer"))
        check_tokenizer(self.found, own)
        return own

    def batches(self, source: Any, tokenizer: CaptionTokenizer, *, blind: bool = False) -> GroupBatches:
        """Batches for prediction; arguments as of `GroupBatches`."""
        config = self.network.encoder_config
        return GroupBatches(
            self.system, config, tokenizer, self.layout, self.output, source, loss=None, blind=blind, task=self.task
        )

    def from_photos(
        self, batches: GroupBatches, store: FeatureStore, groups: Sequence[TaskGroup], folder: str | None
    ) -> GroupBatches:
        """The batches with the photos of these groups. Raises ValueError as `GroupPhotos`."""
        joint: Any = self.network.module
        assert self.photos is not None
        images = dict.fromkeys(image for group in groups for image in group.images)
        encoder = region_encoder_of(joint)
        return batches.with_photos(
            GroupPhotos(store, images, folder, encoder, joint.choices, self.photos, outlines=self.task.outlines)
        )


def run_prediction(request: PredictRequest) -> PredictResult:
    """Predicts every group of a split, and writes the result file. Raises ValueError for a request that does not fit;
    the message names the command's option and what to do."""
    check_predict(request)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    trained = [TrainedTask.read(found, request.data, request.task) for found in checkpoints_of(request)]
    task, chosen = trained[0].task, checkpoint_notes(request)
    _check_problems([each.task.problems for each in trained])
    request = replace(request, split=task.resolve_split(request.split))
    device = choose_device(request.device)
    logger.info("%s", device.words)
    summary: dict[str, Any] = {}
    with ExitStack() as stores:
        ready = [_checked(request, each, stores) for each in trained]  # of both runs, before either writes
        with result_lock(request.out, request.scores, request.page):
            results = [_predict(request, each, device.name) for each in ready]
            if is_main_process():
                summary = _join_parts(request, results)
                _write_card(request, results, summary)
    return PredictResult(
        out=request.out,
        task=task.name,
        split=request.split,
        groups=_num_groups(ready),
        judged=summary.get("judged", 0),
        unjudged=summary.get("unjudged", 0),
        made=sum(each.made for each in results),
        checkpoint=trained[0].found.source,
        notes=tuple(dict.fromkeys([*chosen, *(note for each in results for note in (*each.ready.notes, *each.notes))])),
        page=request.page,
        scores=request.scores,
    )


class _Ready(NamedTuple):
    """Input of one model: the groups, their batches, and what is known of them."""

    trained: TrainedTask
    groups: Sequence[TaskGroup]
    batches: GroupBatches
    notes: Sequence[str]
    seen: SeenBefore
    contents: Sequence[str]  # digests of what the stores hold
    unseen: MissingImages
    without: GroupBatches  # of those groups


class _Predicted(NamedTuple):
    """Predictions of one model: its parts, how many this process made, the digest of its weights, and the number type
    with the notes on it."""

    ready: _Ready
    parts: ResultParts
    made: int
    weights: str
    precision: str
    notes: Sequence[str]


def _checked(request: PredictRequest, trained: TrainedTask, stores: ExitStack) -> _Ready:
    """Reads and checks the input of a model.

    Args:
        stores: closes what is opened here.
    """
    task = trained.task
    if task.joins_training_alone and request.annotated_store is None and request.split != task.train:
        task = replace(task, joined=None)
        trained = replace(trained, task=task)
    check_annotated(task, request.annotated_store, from_photos=trained.photos is not None)
    store = stores.enter_context(opened_store(request.store))
    annotated = stores.enter_context(opened_store(request.annotated_store))
    stored = [each for each in (store, annotated) if each is not None]
    features = [] if trained.photos else stored  # photos take its boxes alone
    notes = [note for each in features for note in check_feature_space(trained.found, each)]
    read, joined, source = _joined(request, task, store, annotated)
    notes += read.notes
    if request.scores is not None:
        check_texts([group.id for group in read.groups], task.labels)
    own = joined.groups  # those whose images are there
    groups, unseen = with_missing(read.groups, joined) if joined.missing else (own, MissingImages())
    notes += [unseen.note(f"{task.name}, {request.split}")] if unseen.ids else []
    seen = SeenBefore(0, ())
    if store is not None:
        seen = seen_before(trained.run, joined.image_ids(), photo_names(HeldOutOptions(), store, joined.called))
    notes += seen.notes(trained.run, request.split)
    if request.permute_images:  # then all are there
        groups = own = _permuted(own, request.seed)
    batches = trained.batches(source, trained.tokenizer(), blind=request.blind)
    if trained.photos is not None and store is not None:
        batches = trained.from_photos(batches, store, own, request.photos)
    for first in [group for group in own if group.is_open][:1]:
        batches.check(first)
    with waiting("looking for boxes"):
        batches.check_boxes(own)
    with waiting("looking for long texts"):
        notes += batches.notes_of_cuts(groups, request.split)
    contents = [each.manifest.content_digest for each in (store, annotated) if each is not None]
    without = batches.without_regions(own[0].images[0]) if unseen.ids else batches
    return _Ready(trained, groups, batches, notes, seen, contents, unseen, without)


def _joined(
    request: PredictRequest, task: DownstreamTask, store: FeatureStore | None, annotated: FeatureStore | None
) -> tuple[TaskSplit, JoinedGroups, FeatureStore | StorePair | None]:
    """The split, the groups whose images the stores have, and the source of their regions."""
    what = f"{task.name}, {request.split}"
    hint = ", or answer its rows without regions with a lower --min-match" if task.form == LABEL else ""
    with waiting(f"joining {request.split} with the store"):
        read = task.read(request.split)
        check_ids(task, read.groups, what)
        joined = JoinedGroups(read.groups, (), 0, 0)
        if store is not None:
            joined = StoreImages(store).join(read.groups, what, min_match=request.min_match, hint=hint)
        source = store if annotated is None or store is None else StorePair(store, annotated)
        if isinstance(source, StorePair):
            joined = source.with_both(joined, what, min_match=1.0)
    check_num_boxes(task, joined.groups, source)
    return read, joined, source


def _predict(request: PredictRequest, ready: _Ready, device: str) -> _Predicted:
    trained = ready.trained
    learned = trained_precision(saved_config(trained.found.source.parent)["train"])
    precision = precision_of(request.precision, learned, device)
    note = f"computed in {precision}; the run was trained and evaluated in {learned}"
    trained.network.module.to(device)
    weights = weights_digest(trained.network.module.state_dict())
    digest = _digest(request, weights, ready, precision)
    count = -(-len(ready.groups) // PART_GROUPS)
    parts = ResultParts(request.out, digest, count, has_array=request.scores is not None)
    with autocast_to(precision, device):
        made = _write_parts(request, ready, parts, count)
    trained.network.module.to("cpu")
    return _Predicted(ready, parts, made, weights, precision, [note] if precision != learned else [])


def _write_card(request: PredictRequest, results: Sequence[_Predicted], summary: Mapping[str, Any]) -> None:
    """Writes the card of the file, and the page if requested."""
    ready = [each.ready for each in results]
    trained = [each.trained for each in ready]
    models = [model_facts(each.ready.trained, each.weights, each.ready.seen, each.precision) for each in results]
    with opened_store(request.store) as store:
        settings = {name: getattr(request, name) for name in ("blind", "permute_images", "seed", "batch_size")}
        settings |= ready[0].unseen.described()
        card = card_facts(
            store, models, summary, rows=_num_groups(ready), split=request.split, settings=settings,
            annotated=request.annotated_store, command=request.command,
        )  # fmt: skip
        write_card(request.out, card)
        if request.page is None:
            return
        runs = " and ".join(each.run.name for each in trained)
        judged, unjudged = plural(summary["judged"], "row"), plural(summary["unjudged"], "row")
        if not summary["judged"]:
            figure, more = unjudged, " There are no right answers, so nothing is evaluated."
        else:
            figure = f"{summary['measure']} {100 * summary['sum'] / summary['judged']:.2f} % of {judged}"
            chance = chance_of(trained[0].task, ready[0].groups, summary)
            figure += f", chance {100 * chance:.2f} %" if chance else ""
            more = f" Of {unjudged} more the right answer is not known." if summary["unjudged"] else ""
        line = f"{trained[0].task.name}, {request.split}: {figure}, predicted by {runs}.{more}"
        remarks = dict.fromkeys(note for each in ready for note in each.seen.notes("the model", request.split))
        write_prediction_page(
            request.page, f"Predictions of {request.out.name}", line, summary, store, facts=card_lines(card),
            remarks=list(remarks), banner=None if store is None else warning_of_store(store.manifest),
        )  # fmt: skip


def _check_problems(problems: Sequence[Sequence[str]]) -> None:
    """Raises ValueError for two runs that answer the same problem, or the whole task each."""
    if len(problems) < 2:
        return
    if not all(problems):
        raise ValueError("RUN_2: one run predicts the whole file of this task; leave it out")
    twice = sorted(set(problems[0]) & set(problems[1]))
    if twice:
        raise ValueError(
            f"RUN and RUN_2 both predict the {' and the '.join(twice)}; name a run of each problem, or one alone"
        )


def _write_parts(request: PredictRequest, ready: _Ready, parts: ResultParts, count: int) -> int:
    """Writes the missing parts of this process; returns their number."""
    groups, task = ready.groups, ready.trained.task
    with parts.missing() as missing:
        for number in missing:
            chosen = groups[number * PART_GROUPS : (number + 1) * PART_GROUPS]
            with waiting(f"predicting, part {number + 1} of {count}"):
                answers = _answers(request, ready, chosen)
                entries = list(task.answers(chosen, answers))
                summary = ready.unseen.without_images(summarize_predictions(task, chosen, answers))
            scores = None
            if request.scores is not None:
                scores = np.stack([each.scores for each in answers]).astype("<f4")
            parts.write(number, scores, entries=entries, told=summary)
    return len(missing)


def _answers(request: PredictRequest, ready: _Ready, groups: Sequence[TaskGroup]) -> list[Prediction]:
    """The prediction of each group; without regions where the store lacks the images."""
    module, form = ready.trained.network.module, ready.trained.output.form
    predictions: dict[bool, Iterator[Prediction]] = {}
    for is_unseen, batches in ((False, ready.batches), (True, ready.without)):
        chosen = [group for group in groups if (group.id in ready.unseen.ids) == is_unseen]
        predictions[is_unseen] = iter(list(predicted(module, batches, chosen, form, request.batch_size)))
    return [next(predictions[group.id in ready.unseen.ids]) for group in groups]


def _num_groups(ready: Sequence[_Ready]) -> int:
    return len({group.id for each in ready for group in each.groups})


def _join_parts(request: PredictRequest, results: Sequence[_Predicted]) -> dict[str, Any]:
    """Waits for the parts of all processes, and writes the result file and the requested file of scores. Returns the
    summary of all parts."""
    for each in results:
        each.parts.wait()
    first, trained = results[0], results[0].ready.trained
    if request.scores is not None:
        about = {
            "task": trained.task.name, "split": request.split, "model": str(trained.found.source),
            "weights": first.weights, "precision": first.precision,
            "probability": probability_of(trained.task),
        }  # fmt: skip
        ids = [group.id for group in first.ready.groups]
        write_label_scores(request.scores, ids, trained.task.labels, first.parts.arrays, about)
    read = [part for each in results for part in each.parts.facts()]
    with atomic_path(request.out, replaces=True) as aside:
        write = write_csv_entries if trained.task.own_table and is_csv(request.out) else trained.task.write
        write(aside, [entry for part in read for entry in part["entries"]])
    return joined_parts(part["told"] for part in read)


def _digest(request: PredictRequest, weights: str, ready: _Ready, precision: str) -> str:
    """Twelve hexadecimal digits of the digest of weights, request, inputs and labels."""
    task = ready.trained.task
    inputs: list[Any] = [weights, request.split, request.blind, _PART_FORMAT, *ready.contents, request.photos]
    inputs += [request.permute_images, request.seed, request.batch_size, task.problems]
    inputs += [] if precision == FLOAT32 else [precision]
    found = hashlib.sha256(repr(inputs).encode())
    for group in ready.groups:
        right = task.right_words(group) if task.right_words is not None and task.has_label(group) else ""
        texts = [[part.text for part in row.parts] for row in group.rows]
        found.update(repr((group.id, group.images, texts, right)).encode())
    return found.hexdigest()[:12]


def _permuted(groups: Sequence[TaskGroup], seed: int) -> list[TaskGroup]:
    """Gives every group the images of another one, never its own; equal images stay together. Raises ValueError when
    there is no other one."""
    kinds = list(dict.fromkeys(group.images for group in groups if group.is_open))
    if len(kinds) < 2:
        raise ValueError("--permute-images needs groups of at least two images")
    order = np.random.default_rng(seed).permutation(len(kinds))
    other = {kinds[at]: kinds[order[(place + 1) % len(order)]] for place, at in enumerate(order)}
    return [replace(group, images=other[group.images], swapped=True) if group.is_open else group for group in groups]
