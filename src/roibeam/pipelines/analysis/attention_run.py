"""Attention analysis of an opened model: data set, parses and store joined; attention.json and pictures out."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.record.fingerprint import has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural
from roibeam.pipelines.analysis.analysis_settings import RULES, check_new, removed_on_failure
from roibeam.pipelines.analysis.attention_figures import pictured_captions, pictured_heads, write_pictures, write_plots
from roibeam.pipelines.analysis.attention_questions import (
    ENTITY,
    SPACY,
    CaptionQuestions,
    LeftOut,
    Questioner,
    parses_by_caption,
    spacy_parses,
)
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.head_accuracy import (
    ACTIVE,
    PAPER,
    PAPER_SETUP,
    HeadFigures,
    differences,
    head_figures,
    head_looks,
    relations_of,
)
from roibeam.pipelines.analysis.load_for_evaluation import (
    feature_assumptions,
    features_for,
    pretraining_model,
    trained_images_among,
)
from roibeam.pipelines.analysis.requests import AttentionRequest
from roibeam.pipelines.common.compute import choose_device
from roibeam.pipelines.common.console.progress import CAPTIONS, Progress
from roibeam.pipelines.data.compatibility import check_task
from roibeam.pipelines.data.datasets.entities import EntityCounts, EntityImage, read_conll, read_entities, split_names
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos
from roibeam.pipelines.data.record_regions import check_whole_grid, strongest_regions
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.provenance import check_feature_space, check_tokenizer, trained_with
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


@dataclass(frozen=True, eq=False)
class QuestionData:
    """Attributes:
    captions: with their questions; at least one.
    record_of: the record of an id; the last ones are kept, since captions of an image come one after the other.
    notes: counts of what was read and what was left out.
    """

    captions: tuple[CaptionQuestions, ...]
    record_of: Callable[[str], RegionRecord]
    notes: tuple[str, ...]


def read_questions(store: FeatureStore, samples: EvaluationSamples, request: AttentionRequest) -> QuestionData:
    """Reads captions, parses and records, and makes the questions."""
    counts, left_out = EntityCounts(), LeftOut()
    names = None if request.split is None else split_names(request.entities, request.split)
    images = list(read_entities(request.entities, counts, names=names, rule=RULES[request.rules][0]))
    parses = None
    if request.parses is not None:
        source = str(request.parses)
        every = [(image.name, number) for image in images for number in image.sentences]
        made = spacy_parses(_some(images, request)) if source == SPACY else read_conll(source)
        parses = parses_by_caption(made, every, source)
    check_whole_grid(store, request.max_regions or 0, "--max-regions")
    finder = ImageFinder(store.ids())
    found = {image.name: finder.find(image.name) for image in images}
    _check_match(found, request)

    @lru_cache(maxsize=max(request.batch_size, 1))
    def record_of(record_id: str) -> RegionRecord:
        record = store.get(record_id, check=True)  # heads, baseline and ceiling use the same regions of it
        most = request.max_regions or 0
        if not most or record.num_regions <= most:
            return record
        kept = np.sort(strongest_regions(record, most))
        fields = {name: getattr(record, name)[kept] for name in ("boxes", "features", "class_ids", "class_scores")}
        return replace(record, **fields, attribute_ids=None, attribute_scores=None, class_distribution=None)

    questioner = Questioner(samples.pieces_of_words, request.word, parses, left_out, samples.cut_words)
    captions: list[CaptionQuestions] = []
    for image in _some(images, request):
        record_id = found[image.name]
        if record_id is None:
            left_out.add("images without a record in the store", image.name)
        else:
            captions += questioner.captions(image, record_of(record_id))
    notes = (*counts.lines(), *left_out.lines())
    if not captions:
        raise ValueError(f"no question can be made from --entities {request.entities!r}: {'; '.join(notes)}")
    return QuestionData(tuple(captions), record_of, notes)


def _check_match(found: dict[str, str | None], request: AttentionRequest) -> None:
    missing = [name for name, record_id in found.items() if record_id is None]
    share = 1 - len(missing) / max(len(found), 1)
    if share < request.min_match or len(missing) == len(found):
        raise ValueError(
            f"--store {request.store} has {plural(len(found) - len(missing), 'image')} of the {len(found):,} of "
            f"--entities; {missing[0]!r} is missing. Name the split that it has with --split, or allow fewer with "
            f"--min-match"
        )


def _some(images: list[EntityImage], request: AttentionRequest) -> list[EntityImage]:
    if not request.max_images or request.max_images >= len(images):
        return images
    drawn = np.random.default_rng(request.seed).permutation(len(images))[: request.max_images]
    return [images[place] for place in sorted(drawn.tolist())]


log = logging.getLogger(__name__)

RESULTS_NAME = "attention.json"


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Attributes:
    entity: figures of entity grounding.
    relations: the same for arcs of each relation, the commonest first; empty without parses.
    remarks: what was left out, and what to be careful about.
    captions, images: numbers of those with questions.
    differences: from the paper's setup.
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
    """Does the work of `analyse_attention` of attention_request.py."""
    start = time.monotonic()
    check_new(out)
    model = pretraining_model(found, named=str(found.source), verb="analyse")
    remarks: list[str] = []

    def add(*notes: str) -> None:
        for note in notes:
            remarks.append(note)
            tell(note)

    add(*found.changes, *check_feature_space(found, store))
    check_tokenizer(found, tokenizer)
    check_task(model.config, request.task_token)
    # No classes of regions are predicted: a model may know others than the store.
    samples = EvaluationSamples(model.config, tokenizer, num_classes=None, task=request.task_token)
    questions = read_questions(store, samples, request)
    captions, record_of = questions.captions, questions.record_of
    add(*questions.notes)
    if not has_classes(store.fingerprint):
        add("the store has no detection scores: the baseline is a region drawn by lot")
    device = choose_device(request.device)
    log.info("%s", device.words)
    ids = list(dict.fromkeys(each.record_id for each in captions))
    if leaked := trained_images_among(found, ids):
        add(f"this run was trained on {len(leaked):,} of the {plural(len(ids), 'image')}")
    out.mkdir(parents=True, exist_ok=True)
    where = torch.device(device.name)
    photos = request.photos if isinstance(found, JointCheckpoint) else None
    features = features_for(found, store, ids, photos, scratch=out, device=where)
    samples = EvaluationSamples(
        model.config, tokenizer, num_classes=None, task=request.task_token, features=features, as_read=found.as_read
    )
    samples.check(record_of(ids[0]))
    add(*feature_assumptions(found, record_of(ids[0])))
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
        add(f"no head is active: none gives over {100 * ACTIVE:.0f} % of its attention to regions")
    num_layers, num_heads = entity.accuracy.shape
    unlike = differences(request, type(model).__name__, layers=num_layers, heads=num_heads, images=len(looks.images))
    with removed_on_failure(out):
        pictures = [*write_plots(out, entity, relations)]
        pictured = pictured_captions(captions)
        photo_of = _photos(store, [each.record_id for each in pictured], request.photos)
        pictures += write_pictures(out, model, samples, pictured, record_of, entity, photo_of=photo_of, device=where)
        facts = {
            "asked": request.to_dict(),
            "model": type(model).__name__,
            "step": trained_with(found).step,
            "feature_space": store.fingerprint.feature_space,
            "metric": f"the region that a head attends to most has {rule.words}",
            "active": f"mean share of the attention on regions > {ACTIVE}",
            "captions": len(captions),
            "images": len(looks.images),
            "paper": {"title": PAPER, "asked_there": PAPER_SETUP, "different_here": unlike},
            "pictured_heads": [f"{layer + 1}-{head + 1}" for layer, head in zip(*pictured_heads(entity), strict=True)],
            "remarks": remarks,
            "populations": [each.to_json() for each in figures],
        }
        (out / RESULTS_NAME).write_bytes(json_bytes(facts))
    return AttentionResult(
        entity, tuple(relations), tuple(remarks), tuple(unlike), len(captions), len(looks.images),
        out / RESULTS_NAME, tuple(pictures), time.monotonic() - start, device.name,
    )  # fmt: skip


def _photos(
    store: FeatureStore, record_ids: Sequence[str], folder: str | None
) -> Callable[[RegionRecord], np.ndarray | None]:
    """Returns a reader of photos for pictures; it gives None for a photo that is not found, drawn on grey."""
    try:
        photos = RecordPhotos(store, record_ids, folder)
    except ValueError:
        if folder is not None:
            raise
        return lambda _record: None

    def read(record: RegionRecord) -> np.ndarray | None:
        try:
            return photos.read(photos.place(record.image_id, (record.height, record.width)))
        except PhotoError:
            return None

    return read
