"""Held-out evaluation: a checkpoint, a store and captions in, results.json out.

captions x store -> join -> samples -> model -> measures by image -> bootstrap -> figures
"""

import json
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from roibeam.extraction.network.state import weights_digest
from roibeam.features.record.fingerprint import has_classes
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig, check_new, removed_on_failure
from roibeam.pipelines.analysis.evaluation.evaluation_results import (
    figure_of,
    median_rank_of,
    write_evaluation_page,
    write_results,
)
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import (
    ALL,
    NONE,
    CaptionMeasure,
    EvaluationSet,
    HiddenWords,
    evaluation_set,
    masked_measures,
    matching_measures,
    words_alone,
)
from roibeam.pipelines.analysis.evaluation.retrieval import has_match_head, retrieve
from roibeam.pipelines.analysis.load_for_evaluation import (
    NO_MATCH_HEAD,
    PhotoFeatures,
    feature_assumptions,
    features_for,
    pretraining_model,
    run_of,
    trained_images_among,
)
from roibeam.pipelines.common.compute import choose_device
from roibeam.pipelines.common.console.progress import CAPTIONS, Progress
from roibeam.pipelines.common.statistics.verdict import Bootstrap, Figure
from roibeam.pipelines.data.captions.caption_files import Caption, CaptionFile
from roibeam.pipelines.data.captions.caption_join import JoinReport
from roibeam.pipelines.data.captions.captioned_store import digest_of_captions, join_captions
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_task
from roibeam.pipelines.data.feature_settings import boxes_words, dtype_words
from roibeam.pipelines.data.record_regions import check_whole_grid
from roibeam.pipelines.data.vocabulary import known_classes
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, describe_joint
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.provenance import check_feature_space, check_tokenizer, trained_with
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, unknown_notes
from roibeam.pipelines.training.run_folder.training_data import read_word_counts
from roibeam.pipelines.training.train_config import FLOAT32, autocast_to, precision_of

log = logging.getLogger(__name__)

WordReader = Callable[[HiddenWords], Mapping[str, float]]


@dataclass(frozen=True)
class EvaluationResult:
    """Attributes:
    figures: in the order of display.
    remarks: on measures that are left out and why, and other cautions.
    join: how captions met records.
    num_captions, num_images: that were evaluated.
    results: the file written.
    page: report.html beside it.
    seconds: it took.
    device: where the model ran, as torch names it.
    step: of the evaluated checkpoint; None for a model that is no run's.
    """

    figures: tuple[Figure, ...]
    remarks: tuple[str, ...]
    join: JoinReport
    num_captions: int
    num_images: int
    results: Path
    page: Path
    seconds: float
    device: str
    step: int | None


def evaluate_checkpoint(
    found: ModelCheckpoint,
    tokenizer: CaptionTokenizer,
    store: FeatureStore,
    captions: Iterable[Caption],
    out: str | Path,
    *,
    config: EvaluationConfig | None = None,
    images: str | None = None,
    min_match: float = 1.0,
    extra_facts: dict[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _remark: None,
) -> EvaluationResult:
    """Evaluates a model on the captions whose images the store has; `out` gets results.json and report.html.

    A `JointCheckpoint` reads their photos: boxes and targets are the store's, features its own encoder's.

    Args:
        out: folder that is not there yet, or empty.
        images: of a model that was read with its region encoder: folder of the photos; None takes the locations that
            the store recorded.
        min_match: share of the captioned images (0..1) that the store must have: with fewer images retrieval is easier.
        extra_facts: for the results, on where the inputs came from.
        tell: is called with each remark of the result as soon as it is known, most of them before the model runs.
    """
    start, config, out = time.monotonic(), config or EvaluationConfig(), Path(out)
    check_new(out)
    model = pretraining_model(found, named=str(found.source), verb="evaluate")
    remarks = [*found.changes, *check_feature_space(found, store, reads_classes=True)]
    check_tokenizer(found, tokenizer)
    check_task(model.config, config.task)
    other_splits = captions.other_splits if isinstance(captions, CaptionFile) else ()
    rows, join = join_captions(store, captions, min_match, other_splits=other_splits)
    chosen_device = choose_device(config.device)
    log.info("%s", chosen_device.words)
    device = torch.device(chosen_device.name)
    precision = precision_of(config.precision, FLOAT32, device.type)
    features = features_for(found, store, rows.captioned_ids(), images, scratch=out, device=device)
    corpus = Corpus(store, rows)
    samples = checked_samples(found, tokenizer, store, corpus.record_id(0), config, features)
    chosen = evaluation_set(corpus, max_images=config.max_images, seed=config.seed)
    digest = digest_of_captions([rows])
    leaks, leaked = _leaks(found, digest, chosen)
    remarks += [*feature_assumptions(found, corpus.record(0)), *leaks, *_words_lost(tokenizer, samples, chosen)]
    for remark in remarks:
        tell(remark)
    out.mkdir(parents=True, exist_ok=True)
    log.info("%s of %s", plural(len(chosen.rows), "caption"), plural(len(chosen.image_ids), "image"))
    alone = _word_reader(found, tokenizer, leaked)
    with autocast_to(precision, device.type):
        measures, medians, skipped = _measure(model, samples, chosen, config, out, device, alone)
    for remark in skipped:
        tell(remark)
    bootstrap = Bootstrap(len(chosen.image_ids), seed=config.seed)
    figures = (*(figure_of(measure, bootstrap) for measure in measures), *medians)
    facts = {
        "checkpoint": _checkpoint_facts(found),
        "store": _store_facts(store),
        "tokenizer": tokenizer.digest,
        "question": {
            "captions_digest": digest,
            "captions": len(chosen.rows),
            "images": len(chosen.image_ids),
            **{name: getattr(config, name) for name in ("seed", "max_images", "folds")},
        },
        "settings": asdict(config),
        "join": join.to_json(),
        **(extra_facts or {}),
        "remarks": [*remarks, *skipped],
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - start, 1),
    }
    with removed_on_failure(out):
        results = write_results(out, facts, figures, chosen.image_ids, measures)
        page = write_evaluation_page(out, facts, figures)
    return EvaluationResult(
        figures=figures, remarks=(*remarks, *skipped), join=join, num_captions=len(chosen.rows),
        num_images=len(chosen.image_ids), results=results, page=page, seconds=time.monotonic() - start,
        device=chosen_device.name, step=trained_with(found).step,
    )  # fmt: skip


def checked_samples(
    found: ModelCheckpoint,
    tokenizer: CaptionTokenizer,
    store: FeatureStore,
    first_id: str,
    config: EvaluationConfig,
    features: PhotoFeatures | None,
) -> EvaluationSamples:
    """Returns the samples, checked on the first record."""
    check_whole_grid(store, config.max_regions, "--max-regions")
    first = store[first_id]
    samples = EvaluationSamples(
        found.model.config,
        tokenizer,
        num_classes=known_classes(store, first),
        with_class_ids=has_classes(store.fingerprint),
        background=config.background,
        max_regions=config.max_regions,
        task=config.task,
        features=features,
        as_read=found.as_read,
    )
    samples.check(first)
    return samples


def _checkpoint_facts(found: ModelCheckpoint) -> dict[str, Any]:
    joint = found.joint if isinstance(found, JointCheckpoint) else None
    return {
        "source": str(found.source),
        "model": type(found.model).__name__,
        "step": trained_with(found).step,
        "weights": weights_digest((joint or found.model).state_dict()),
        "config": json.loads(found.model.config.to_json_string()),
        "end_to_end": None if joint is None else describe_joint(joint)["end_to_end"],
    }


def _store_facts(store: FeatureStore) -> dict[str, Any]:
    fingerprint = store.fingerprint
    return {
        "path": str(store.path),
        "feature_space": fingerprint.feature_space,
        "meaning": fingerprint.meaning,
        "boxes": boxes_words(fingerprint),
        "dtype": dtype_words(fingerprint),
        "numerics": fingerprint.numerics,
    }


def _measure(
    model: Any,
    samples: EvaluationSamples,
    chosen: EvaluationSet,
    config: EvaluationConfig,
    scratch: Path,
    device: torch.device,
    alone: WordReader,
) -> tuple[list[CaptionMeasure], list[Figure], list[str]]:
    """Returns measures, median ranks, and reasons why others are missing."""
    model.to(device)
    options: dict[str, Any] = {"seed": config.seed, "batch_size": config.batch_size, "device": device}
    remarks: list[str] = []
    if samples.objective is None:
        remarks.append("no masked regions: this model predicts nothing of regions")
    elif not samples.predicts_regions:
        remarks.append("no masked regions: this model predicts their classes, and the store has no class ids")
    with Progress("masked words and regions", len(chosen.rows), CAPTIONS) as progress:
        measures = masked_measures(model, samples, chosen, **options, alone=alone, progress=progress.one_more)
    if not has_match_head(model, samples, chosen, device):
        remarks.append(f"no matching and no retrieval: {NO_MATCH_HEAD}")
        return measures, [], remarks
    if len(chosen.image_ids) < 2:
        remarks.append("no matching and no retrieval: they need a second image")
        return measures, [], remarks
    with Progress("right and wrong images", len(chosen.rows), CAPTIONS) as progress:
        measures += matching_measures(model, samples, chosen, **options, progress=progress.one_more)
    if not config.retrieval:
        return measures, [], remarks
    directions = retrieve(
        model, samples, chosen, folds=config.folds, batch_size=config.batch_size, device=device, scratch=scratch
    )
    bootstrap = Bootstrap(len(chosen.image_ids), seed=config.seed)
    for direction in directions:
        measures += direction.measures(len(chosen.image_ids))
    return measures, [median_rank_of(direction, bootstrap) for direction in directions], remarks


def _words_lost(tokenizer: CaptionTokenizer, samples: EvaluationSamples, chosen: EvaluationSet) -> list[str]:
    """Notes on words that the tokenizer does not know, and on captions that are cut."""
    captions = [chosen.corpus.caption(int(row)) for row in chosen.rows]
    cut = sum(samples.is_cut(caption) for caption in captions)
    cuts = [f"{plural(cut, 'caption')} cut to the pieces that the model takes"] if cut else []
    return [*unknown_notes(tokenizer, "the captions", captions, stops=False), *cuts]


def _word_reader(found: ModelCheckpoint, tokenizer: CaptionTokenizer, leaked: Container[str]) -> WordReader:
    """Returns a reader of words alone, from the run's own counts; without counts it finds nothing.

    Args:
        leaked: ids of the images that the run was trained on.
    """
    counts = None if trained_with(found).step is None else read_word_counts(run_of(found))
    if counts is None:
        return lambda _words: {}
    return lambda words: words_alone(words, counts, tokenizer, counted_ids=leaked)


def _leaks(found: ModelCheckpoint, digest: str, chosen: EvaluationSet) -> tuple[list[str], Container[str]]:
    """Notes on evaluated captions that the run was trained on, as far as its folder records it, and their images."""
    origin, trained = trained_with(found), trained_images_among(found, chosen.image_ids)
    if digest == origin.captions:
        return ["this run was trained on these very captions: the results are no held-out evaluation"], ALL
    if not trained:
        return [], NONE
    note = (
        f"this run was trained on {len(trained):,} of the {plural(len(chosen.image_ids), 'image')}, such as "
        f"{printable(trained[0], 80)}: the results are no held-out evaluation"
    )
    return [note], frozenset(trained)
