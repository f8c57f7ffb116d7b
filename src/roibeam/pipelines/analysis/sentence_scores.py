"""Scores of a sentence with photos of a store by a trained model, and vectors to search by: of a sentence, of a photo.

A run of retrieval and a pre-trained model score through `PairParts`, as `roibeam predict` does, one text with all.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.fingerprint import meaning_difference
from roibeam.features.store import FeatureStore
from roibeam.messages import printable
from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import MatchModel
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_run import checked_samples
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.load_for_evaluation import (
    NO_MATCH_HEAD,
    features_for,
    pretraining_model,
    tokenizer_of,
)
from roibeam.pipelines.analysis.requests import SearchRequest
from roibeam.pipelines.analysis.vector_search import BOTH, REGIONS, WHOLES, log_cost
from roibeam.pipelines.common.compute import choose_device
from roibeam.pipelines.common.console.progress import PHOTOS, Progress, waiting
from roibeam.pipelines.data.captions.corpus import reader
from roibeam.pipelines.data.compatibility import check_task
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.shard.shard_job import shared_detector, shared_fingerprint
from roibeam.pipelines.extract.stores.store_repair import RepairSource, recorded_extraction
from roibeam.pipelines.finetuning.metrics.retrieval import FoldPairs
from roibeam.pipelines.finetuning.rows import TaskGroup, text_row
from roibeam.pipelines.finetuning.run.pair_scores import PairParts, pair_scorer, plan_pairs
from roibeam.pipelines.finetuning.run.predict_run import TrainedTask
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
from roibeam.pipelines.training.model_files.model_folder import FoundModel
from roibeam.pipelines.training.model_files.provenance import check_feature_space
from roibeam.pipelines.training.model_files.tokenizer import EncodedCaption, unknown_notes

logger = logging.getLogger(__name__)


def match_scores(
    request: SearchRequest, run: FoundModel | None, store: FeatureStore, image_ids: Sequence[str], notes: list[str]
) -> np.ndarray:
    """(I,) scores of the sentence with these photos. The cost is logged first.

    Args:
        run: checkpoint of a run of retrieval; None for a pre-trained model.
        notes: gets more.
    """
    chosen = choose_device(request.device)
    logger.info("%s", chosen.words)
    device = torch.device(chosen.name)
    network: Any
    batches: Any
    groups = [TaskGroup(each, (each,), (text_row(request.text),)) for each in image_ids]
    with tempfile.TemporaryDirectory() as scratch:  # of features that an encoder makes
        with waiting("loading the model"):
            if run is None:
                network, batches = _pretrained(request, store, image_ids, Path(scratch), device, notes)
            else:
                notes += check_feature_space(run, store)
                trained = TrainedTask.read(run, Path())
                tokenizer = trained.tokenizer()
                notes += unknown_notes(tokenizer, "the sentence", [request.text], stops=False)
                network, batches = trained.network.module, trained.batches(store, tokenizer)
                batches.check(groups[0])
            every = np.arange(len(groups))
            plan = plan_pairs(batches, groups[:1], groups, [FoldPairs(every[:1], every, every[:1])])
        parts = PairParts(
            pair_scorer(network.to(device)), batches, plan, at_once=request.batch_size, device=device,
            out=request.store, digest="",
        )  # fmt: skip
        log_cost("search", len(groups), 1 / parts.seconds_per_pair())
        with Progress("search", len(groups), PHOTOS) as progress:
            return parts.block(plan.parts[0], progress.to)[0]


def _pretrained(
    request: SearchRequest, store: FeatureStore, ids: Sequence[str], scratch: Path, device: torch.device,
    notes: list[str],
) -> tuple[MatchModel, SampleBatches]:  # fmt: skip
    found = load_model_or_joint(str(request.model))
    model = pretraining_model(found, named=f"--model {request.model}", verb="search with")
    notes += [*found.changes, *check_feature_space(found, store)]
    tokenizer = tokenizer_of(found)
    notes += unknown_notes(tokenizer, "the sentence", [request.text], stops=False)
    check_task(model.config, None)
    try:
        network = MatchModel(model).eval()
    except ValueError:
        raise ValueError(f"--model {request.model}: {NO_MATCH_HEAD}; or finetune it --task retrieval") from None
    photos = request.photos if isinstance(found, JointCheckpoint) else None
    features = features_for(found, store, ids, photos, scratch=scratch, device=device)
    samples = checked_samples(found, tokenizer, store, ids[0], EvaluationConfig(), features)
    return network, SampleBatches(samples, store)


class SampleBatches:
    """Samples of an evaluation as `PairParts` takes them from `GroupBatches`: a group is a text and an image."""

    def __init__(self, samples: EvaluationSamples, store: FeatureStore) -> None:
        self._samples, self._store, self._read = samples, store, reader(store)

    def row_text(self, group: TaskGroup) -> EncodedCaption:
        return self._samples.text(group.rows[0].parts[0].text)

    def num_regions(self, group: TaskGroup) -> int:
        return int(self._store.num_regions_of(group.images)[0])

    def texts(self, groups: Sequence[TaskGroup]) -> VLBatch:
        return self._samples.texts([self.row_text(each).ids for each in groups])

    def images(self, groups: Sequence[TaskGroup]) -> VLBatch:
        return self._samples.images([self._read(each.images[0]) for each in groups])


def sentence_vector(request: SearchRequest, store: FeatureStore) -> tuple[np.ndarray, str]:
    """(1, D) vector of the sentence by the text network beside that of the store's vectors, and which of these are in
    its space. Raises ValueError where it cannot be loaded, or is another."""
    recorded, details = DetectorSpec.from_json(store.manifest.config["detector"]).backbone, store.fingerprint.details
    assert recorded is not None and request.backbone is not None
    with waiting("loading the text network"):
        opened = replace(recorded, name=request.backbone, revision="").opened()
        network = opened.backbone(choose_device(request.device).name, "exact")
    if network.describe(recorded.pool)["weights"] != details["backbone"]["weights"]:
        raise ValueError(f"--backbone {request.backbone}: has other weights than the network that made {store.path}")
    vectors = network.text_vectors([request.text]).cpu().numpy()
    return vectors, BOTH if details.get("image_feature") == "region" else REGIONS


def photo_vectors(request: SearchRequest, store: FeatureStore) -> tuple[np.ndarray, str]:
    """(Q, D) vectors of a photo by the store's own detector: of the whole if the store has such, else of its regions;
    and which they are. Raises ValueError where the detector now gives other features, and for an unusable photo."""
    source = RepairSource("", request.weights, request.detector, request.device, request.backbone)
    spec, options = recorded_extraction(LocalFolder(store.path), store.manifest, source)
    if spec.config is None or store.fingerprint.details.get("regions") == "given":
        raise ValueError(f"--photo: boxes of {store.path} were given, and no detector finds some; search by --region")
    spec = replace(spec, device=choose_device(request.device).name, mode="exact")
    with waiting("loading the store's detector"):
        names = Vocabulary(store.manifest.classes, store.manifest.attributes)
        now = shared_fingerprint(spec, options, names.digest, False)
    if now.meaning != store.fingerprint.meaning:
        raise ValueError(
            f"{store.path} has other features than its detector gives now ({meaning_difference(store.fingerprint, now)}"
            f"); name the weights that made it, --weights or --detector"
        )
    (found,) = extract_regions([ImageRef("photo", str(request.photo))], shared_detector(spec), options=options)
    if isinstance(found, Failure) or not found.num_regions:
        why = f"{found.reason}: {printable(found.detail, 200)}" if isinstance(found, Failure) else "no region was found"
        raise ValueError(f"--photo {request.photo}: {why}")
    return (found.features, REGIONS) if found.image_feature is None else (found.image_feature[None], WHOLES)
