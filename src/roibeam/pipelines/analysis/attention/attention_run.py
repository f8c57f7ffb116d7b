"""The analysis itself: an opened model, store and data set in, attention.json and pictures out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from roibeam.features.counted import counted
from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.record.imported import has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.answer_place import check_new, gone_if_it_fails
from roibeam.pipelines.analysis.asked_model import assumed_of_features, pretraining_model
from roibeam.pipelines.analysis.attention.attention_pictures import shown_captions, shown_heads, write_pictures
from roibeam.pipelines.analysis.attention.attention_settings import RULES, AttentionRequest
from roibeam.pipelines.analysis.attention.head_figures import ACTIVE, HeadFigures, head_figures, relations_of
from roibeam.pipelines.analysis.attention.head_plots import write_plots
from roibeam.pipelines.analysis.attention.looks import head_looks
from roibeam.pipelines.analysis.attention.paper_table import ASKED_THERE, PAPER, differences
from roibeam.pipelines.analysis.attention.questions import ENTITY
from roibeam.pipelines.analysis.attention.reading import read_asked
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.photo_features import features_for
from roibeam.pipelines.analysis.trained_on import trained_images_among
from roibeam.pipelines.common.console.progress import CAPTIONS, Progress
from roibeam.pipelines.common.device_choice import choose_device
from roibeam.pipelines.data.fit import check_task
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.model_files.trained_with import check_feature_space, check_tokenizer, trained_with

log = logging.getLogger(__name__)

RESULTS_NAME = "attention.json"


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Attributes:
    entity: how heads find what phrases name.
    relations: the same for arcs of each relation, the commonest first; empty without parses.
    remarks: what was left out, and what to be careful about.
    captions, images: that were asked about.
    differences: what is not as in the paper.
    results: the file written; pictures: beside it.
    """

    entity: HeadFigures
    relations: tuple[HeadFigures, ...]
    remarks: tuple[str, ...]
    differences: tuple[str, ...]
    captions: int
    images: int
    results: Path
    pictures: tuple[Path, ...]
    seconds: float
    device: str


def analyse_checkpoint(
    found: ModelCheckpoint,
    tokenizer: CaptionTokenizer,
    store: FeatureStore,
    request: AttentionRequest,
    out: Path,
    tell: Callable[[str], None],
) -> AttentionResult:
    """As `analyse_attention` of attention_request.py."""
    start = time.monotonic()
    check_new(out)
    model = pretraining_model(found, named=str(found.source), asking="analyse")
    remarks = _Remarks(tell, [*found.changes, *check_feature_space(found, store)])
    check_tokenizer(found, tokenizer)
    check_task(model.config, request.task)
    # Classes of regions are not asked about: a model may know others than the store.
    samples = EvaluationSamples(model.config, tokenizer, num_classes=None, task=request.task)
    asked = read_asked(store, samples, request)
    captions, record_of = asked.captions, asked.record_of
    for note in asked.notes:
        remarks.add(note)
    if not has_classes(store.fingerprint):
        remarks.add("the store has no detection scores: the baseline is a region drawn by lot")
    device = choose_device(request.device)
    log.info("%s", device.words)
    ids = list(dict.fromkeys(each.record_id for each in captions))
    if leaked := trained_images_among(found, ids):
        remarks.add(f"this run was trained on {len(leaked):,} of the {counted(len(ids), 'image')}")
    out.mkdir(parents=True, exist_ok=True)
    where = torch.device(device.name)
    photos = request.images if isinstance(found, JointCheckpoint) else None
    features = features_for(found, store, ids, photos, scratch=out, device=where)
    samples = EvaluationSamples(
        model.config, tokenizer, num_classes=None, task=request.task, features=features, as_read=found.as_read
    )
    samples.check(record_of(ids[0]))
    for note in assumed_of_features(found, record_of(ids[0])):
        remarks.add(note)
    model.to(device.name)
    rule = GROUNDING_RULES[RULES[request.rules][1]]
    with Progress("attention", len(captions), CAPTIONS) as progress:
        looks = head_looks(
            model, samples, captions, record_of, rule, batch_size=request.batch_size,
            device=where, progress=progress.one_more,
        )  # fmt: skip
    figures = [head_figures(looks, name, seed=request.seed) for name in (ENTITY, *relations_of(looks, ENTITY))]
    entity, *relations = figures
    if not entity.active.any():
        remarks.add(f"no head is active: none gives over {100 * ACTIVE:.0f} % of its attention to regions")
    num_layers, num_heads = entity.accuracy.shape
    unlike = differences(request, type(model).__name__, layers=num_layers, heads=num_heads, images=len(looks.images))
    with gone_if_it_fails(out):
        pictures = [*write_plots(out, entity, relations)]
        shown = shown_captions(captions)
        photo_of = _photos(store, [each.record_id for each in shown], request.images)
        pictures += write_pictures(out, model, samples, shown, record_of, entity, photo_of=photo_of, device=where)
        facts = {
            "asked": request.asked(),
            "model": type(model).__name__,
            "step": trained_with(found).step,
            "feature_space": store.fingerprint.feature_space,
            "metric": f"the region that a head looks at most has {rule.words}",
            "active": f"mean share of the attention on regions > {ACTIVE}",
            "captions": len(captions),
            "images": len(looks.images),
            "paper": {"title": PAPER, "asked_there": ASKED_THERE, "different_here": unlike},
            "pictured_heads": [f"{layer + 1}-{head + 1}" for layer, head in zip(*shown_heads(entity), strict=True)],
            "remarks": remarks.all,
            "populations": [each.to_json() for each in figures],
        }
        (out / RESULTS_NAME).write_bytes(json_bytes(facts))
    return AttentionResult(
        entity, tuple(relations), tuple(remarks.all), tuple(unlike), len(captions), len(looks.images),
        out / RESULTS_NAME, tuple(pictures), time.monotonic() - start, device.name,
    )  # fmt: skip


class _Remarks:
    """Told as soon as they are known."""

    def __init__(self, tell: Callable[[str], None], first: Sequence[str]) -> None:
        self._tell, self.all = tell, list[str]()
        for each in first:
            self.add(each)

    def add(self, remark: str) -> None:
        self.all.append(remark)
        self._tell(remark)


def _photos(
    store: FeatureStore, record_ids: Sequence[str], folder: str | None
) -> Callable[[RegionRecord], np.ndarray | None]:
    """Photos for pictures, where they can be found: without them pictures are drawn on grey."""
    try:
        photos = RecordPhotos(store, record_ids, folder)
    except ValueError:
        if folder is not None:
            raise
        return lambda record: None

    def read(record: RegionRecord) -> np.ndarray | None:
        try:
            return photos.read(photos.place(record.image_id, (record.height, record.width)))
        except PhotoError:
            return None

    return read
