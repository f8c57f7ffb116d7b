"""Data of a pre-training run, gathered and checked before anything is trained.

caption rows x store -> join -> leak guard -> held-out captions are kept out -> photos, end to end

Held-out captions for evaluations are chosen, joined and kept out of the training data.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.analysis.evaluation.evaluation_results import figure_of
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import EvaluationSet, evaluation_set
from roibeam.pipelines.analysis.evaluation.retrieval import has_match_head, retrieve
from roibeam.pipelines.analysis.load_for_evaluation import NO_MATCH_HEAD, PhotoFeatures
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.statistics.verdict import Bootstrap, Figure, Judged
from roibeam.pipelines.data.captions.captioned_store import (
    CaptionedStore,
    JoinedSource,
    LeakGuard,
    check_stores_agree,
    choice_notes,
    digest_of_captions,
    held_out_hints,
    join_sources,
)
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.captions.task_texts import TaskCorpus, TaskTable, TaskTexts, check_named_regions
from roibeam.pipelines.data.image_identity import FLICKR, Key, image_keys, reported_by_name
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.data.record_regions import ImageObjects
from roibeam.pipelines.pretraining.end_to_end_encoder import EndToEnd
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndTask
from roibeam.pipelines.pretraining.recipes.named_systems import check_kinds, check_search
from roibeam.pipelines.pretraining.samples.sampler import TextCorpus
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import ModelChoice, System
from roibeam.pipelines.pretraining.task import PretrainTask, evaluate
from roibeam.pipelines.training.model_files.provenance import digest_of_classes, digest_of_names
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer
from roibeam.pipelines.training.run_folder.training_data import known_keys

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Validation:
    """An evaluation during a run: of the model on the held-out captions, with masks that training does not draw; and
    retrieval, if `search` is one."""

    task: PretrainTask | EndToEndTask
    search: Search | None = None

    def evaluate(self) -> Judged:
        """Figures by name; retrieval as in `roibeam evaluate`, such as "text_to_image_r1"."""
        found = evaluate(self.task, max_samples=self.task.num_samples)
        return found if self.search is None else Judged([*found.figures, *self.search.recalls()])


@dataclass(frozen=True, eq=False)
class Search:
    """Zero-shot retrieval among held-out images, by the weights of the moment, of a model with a match head.

    Attributes:
        num_classes, as_read: as of `EvaluationSamples`.
        chosen: images and captions; the first of the search's seed.
        batch_size: pairs at once.
        joint, photos: end to end, the model with its encoder, and the photos.
    """

    model: Any
    tokenizer: CaptionTokenizer
    num_classes: int | None
    chosen: EvaluationSet
    batch_size: int
    joint: EndToEndModel | None = None
    photos: RecordPhotos | None = None
    as_read: Callable[[RegionRecord], RegionRecord] | None = None

    def check(self) -> None:
        with self._samples() as (samples, _, device):
            if not has_match_head(self.model, samples, self.chosen, device):
                raise ValueError(f"data.validation_retrieval: {NO_MATCH_HEAD}; leave it at 0, or train one of those")

    def recalls(self) -> list[Figure]:
        """R@1, R@5, R@10 of each way, as in `roibeam evaluate`."""
        with self._samples() as (samples, scratch, device):
            directions = retrieve(
                self.model, samples, self.chosen, folds=1, batch_size=self.batch_size, device=device, scratch=scratch
            )
        images = len(self.chosen.image_ids)
        bootstrap = Bootstrap(images)
        return [figure_of(each, bootstrap) for direction in directions for each in direction.measures(images)]

    @contextmanager
    def _samples(self) -> Iterator[tuple[EvaluationSamples, Path, torch.device]]:
        """Samples for the current weights, while the model is in evaluation mode; with a scratch folder."""
        whole: torch.nn.Module = self.model if self.joint is None else self.joint
        device, was_training = next(self.model.parameters()).device, whole.training
        whole.eval()
        with tempfile.TemporaryDirectory() as folder:
            features = None
            if self.joint is not None and self.photos is not None:
                features = PhotoFeatures(self.joint, self.photos, scratch=Path(folder), device=device)
            samples = EvaluationSamples(
                self.model.config, self.tokenizer, num_classes=self.num_classes, features=features, as_read=self.as_read
            )
            try:
                yield samples, Path(folder), device
            finally:
                whole.train(was_training)


@dataclass(frozen=True, eq=False)
class KeptOut:
    """Photos of the evaluations: nothing of them is trained on, by any of their ids (`image_identity`).

    Attributes:
        keys: identities of the photos.
        ids: of the photos, as in their store. Equal ids mean the same photo, unless both data sets are known and
            differ.
        data_set: of the photos, None if it is not known.
    """

    keys: Set[Key]
    ids: Set[str] = frozenset()
    data_set: str | None = None

    @classmethod
    def of(cls, evaluated: JoinedSource) -> KeptOut:
        ids, data_set = evaluated.rows.captioned_ids(), evaluated.source.data_set
        return cls({key for each in ids for key in image_keys(each, data_set)}, frozenset(ids), data_set)

    def without(self, source: JoinedSource) -> JoinedSource:
        """The source without these photos."""
        captioned = source.rows.captioned_ids()
        ids = self._among(captioned, source.source.data_set)
        if not ids:
            return source
        if len(ids) == len(captioned):
            raise ValueError(
                f"{source.store.path}: all of {len(ids):,} captioned images are validated on; nothing is left to "
                f"train on: give --captions and --validation-captions of different images"
            )
        note = f"{plural(len(ids), 'image')} not trained on: the evaluations use images of the same file"
        return dataclasses.replace(source, rows=source.rows.without(ids), notes=(*source.notes, note))

    def without_labelled(self, photos: LabelledPhotos, data_set: str | None) -> LabelledPhotos:
        """Labelled photos without these; `data_set` is that of the store. ValueError if none is left."""
        ids = set(self._among((image.image_id for image in photos.images), data_set))
        kept = tuple(image for image in photos.images if image.image_id not in ids)
        if not kept:
            raise ValueError(f"all of {len(ids):,} labelled photos of {photos.root} are validated on; none is left")
        if ids:
            logger.info("%s not trained on: the evaluations use them", plural(len(ids), "labelled photo"))
        return dataclasses.replace(photos, images=kept)

    def _among(self, image_ids: Iterable[str], data_set: str | None) -> list[str]:
        by_id = self.ids if None in (self.data_set, data_set) or self.data_set == data_set else frozenset()
        return [each for each in image_ids if each in by_id or not self.keys.isdisjoint(image_keys(each, data_set))]


def join_validation(
    source: CaptionedStore, stores: Sequence[FeatureStore], *, most_pieces: int | None, captions: int
) -> tuple[JoinedSource, KeptOut]:
    """The captions for evaluations, and the images that are not trained on: all of their file.

    Args:
        source: of the same feature space as the stores of the run, among which its store may be.
        captions: about how many are evaluated, of images drawn by a fixed seed; 0 = all.
    """
    check_stores_agree([stores[0], source.store])
    (found,) = join_sources([source], most_pieces=most_pieces, guard=None)
    found = dataclasses.replace(found, prefix="validation: ")
    kept_out = KeptOut.of(found)
    if captions and captions < len(found.rows):
        found = dataclasses.replace(found, rows=found.rows.share_of_images(captions / len(found.rows), 0))
    logger.info("evaluations use %s", counts_of(found.rows))
    return found, kept_out


def counts_of(rows: CaptionTable) -> str:
    return f"{plural(len(rows), 'held-out caption')} of {plural(len(rows.captioned_ids()), 'image')}"


@dataclass(frozen=True, eq=False)
class RunData:
    """Data of a run.

    Attributes:
        joined: the sources that are trained on; their features mean the same.
        end_to_end: as given, with the labelled photos that may be trained on.
        evaluated: the held-out captions for evaluations, None for none; `searched` those of them for retrieval.
        missing: ids of images whose photo cannot be used, each with the reason, as far as known.
        choices: allowed differences between the stores, and from those of the model's run: boxes, dtype, mode; a
            line each.
        objects: classes and outlines of the objects in the images; None if they are not read.
    """

    joined: Sequence[JoinedSource]
    end_to_end: EndToEnd | None
    photos: RecordPhotos | None
    evaluated: JoinedSource | None
    evaluated_photos: RecordPhotos | None
    searched: EvaluationSet | None
    texts: TextCorpus | None
    notes: list[str]
    missing: dict[str, str]
    choices: list[str]
    objects: ImageObjects | None = None

    @property
    def store(self) -> FeatureStore:
        """The first store; all have features of the same meaning."""
        return self.joined[0].store

    @property
    def lines(self) -> Sequence[str] | None:
        return None if self.texts is None else self.texts.lines

    def texts_by_source(self) -> list[tuple[str, Sequence[str]]]:
        """Name and captions of each source that is trained on; then the lines of the text corpus."""
        corpus = [] if self.lines is None else [("the text corpus", self.lines)]
        return [*((each.source.where, each.rows.captions) for each in self.joined), *corpus]

    def trained_keys(self) -> Iterator[Key]:
        """Identities of the images that are trained on, those of labelled photos among them."""
        for each in self.joined:
            for image_id in each.rows.captioned_ids():
                yield from known_keys(image_id, each.source.data_set)
        if self.end_to_end is not None and self.end_to_end.detector is not None:
            for image_id in self.end_to_end.detector.trained_ids():
                yield from known_keys(image_id, self.joined[0].source.data_set)

    def described(self) -> dict[str, Any]:
        """Facts of the data that must match on resume."""
        found: dict[str, Any] = {
            "captions": digest_of_captions(each.rows for each in self.joined),
            "text_corpus": None if self.texts is None else self.texts.digest,
            "feature_space": self.store.fingerprint.feature_space,
        }
        spaces = [each.store.fingerprint.feature_space for each in self.joined]
        if len(set(spaces)) > 1:
            found["feature_spaces"] = spaces
        # Imported features do not record who made them: compare their bytes.
        stores = [each.store for each in self.joined]
        imported = [store for store in stores if store.fingerprint.feature_space.startswith(IMPORTED_PREFIX)]
        if imported:
            found["imported_features"] = [store.manifest.content_digest for store in imported]
        if self.evaluated is not None:
            found["validation"] = digest_of_captions([self.evaluated.rows])
        if len(self.joined) > 1:
            found["sources"] = [{"captions": len(each.rows), "weight": each.source.weight} for each in self.joined]
        if self.objects is not None:
            found["object_classes"] = digest_of_names(self.objects.class_names)
        return found if self.end_to_end is None else found | self.end_to_end.described()

    def recorded(self) -> dict[str, Any]:
        """Facts that may differ on resume."""
        features: list[dict[str, Any]] = []
        for each in self.joined:
            fingerprint = each.store.fingerprint.to_json()
            features += [] if fingerprint in features else [fingerprint]
        found = {
            "sources": [each.to_json() for each in self.joined],
            "validation": None if self.evaluated is None else self.evaluated.to_json(),
            "notes": self.notes,
            "classes": digest_of_classes(self.store),
            # The different fingerprints, which later runs, evaluations and probes compare.
            "features": features,
            "choices": self.choices,
        }
        return found if self.end_to_end is None else found | self.end_to_end.recorded(self.missing)


@waiting("joining captions with the stores")
def gather(
    sources: Sequence[CaptionedStore],
    *,
    choice: ModelChoice,
    sampling: Any,
    data: DataConfig,
    text_files: Sequence[Path],
    guard: LeakGuard | None,
    end_to_end: EndToEnd | None,
    validation: CaptionedStore | None,
    objects: Sequence[str] = (),
) -> RunData:
    """Joins the data, leaves out held-out images and checks; arguments and errors as of `pretrain`."""
    system, most_pieces = choice.system, choice.most_pieces(sampling)
    check_kinds(
        system,
        num_stores=len(sources),
        has_text_corpus=bool(text_files),
        has_task_texts=any(isinstance(source.captions, TaskTexts) for source in sources),
        is_end_to_end=end_to_end is not None,
        has_validation=validation is not None,
    )
    check_search(data, has_validation=validation is not None)
    joined = join_sources(sources, most_pieces=most_pieces, guard=guard, share=data.share, share_seed=data.share_seed)
    for each in joined:
        if isinstance(each.rows, TaskTable) and system.aligns_words(sampling):
            check_named_regions(each.store, each.rows)
    evaluated = kept_out = photos = eval_photos = searched = None
    if validation is not None:
        stores = [each.store for each in joined]
        evaluated, kept_out = join_validation(
            validation, stores, most_pieces=most_pieces, captions=data.validation_captions
        )
        joined = [kept_out.without(each) for each in joined]
    missing: dict[str, str] = {}
    if end_to_end is not None:
        if isinstance(joined[0].rows, TaskTable) and joined[0].rows.has_pairs:
            raise ValueError(
                "texts with two images are read with stored features, as NLVR2's release does: end to end a row has "
                "one photo; leave out the text or the encoder"
            )
        end_to_end = _with_labelled(end_to_end, guard, kept_out, joined[0].source.data_set)
        photos, rows, missing = end_to_end.find_photos(joined[0].store, joined[0].rows)
        joined = [dataclasses.replace(joined[0], rows=rows)]
        if evaluated is not None:
            eval_photos, rows, unusable = end_to_end.find_photos(evaluated.store, evaluated.rows)
            evaluated, missing = dataclasses.replace(evaluated, rows=rows), missing | unusable
    if evaluated is not None and data.validation_retrieval:
        evaluated, searched, broken = _searched(evaluated, data.validation_retrieval, eval_photos, end_to_end)
        missing |= broken
    all_joined = joined if evaluated is None else [*joined, evaluated]
    notes = [] if guard is not None else held_out_hints(sources)
    notes += [
        note for each in all_joined for note in (*each.prefixed(each.all_notes()), *_review(system, each, sampling))
    ]
    notes += [*_in_several_stores(joined), *_not_held_out(joined, end_to_end)]
    texts = TextCorpus(text_files) if text_files else None
    notes += [] if texts is None else texts.notes
    if end_to_end is not None and end_to_end.detector is not None:
        notes += end_to_end.detector.notes()
    choices = choice_notes([each.store for each in all_joined])
    known = None
    if objects:
        ids = dict.fromkeys(chain.from_iterable(each.rows.captioned_ids() for each in all_joined))
        known = ImageObjects(objects, list(ids), names_file=sampling.object_names)
    return RunData(joined, end_to_end, photos, evaluated, eval_photos, searched, texts, notes, missing, choices, known)


def corpus_of(joined: Sequence[JoinedSource]) -> Corpus:
    first, *others = joined
    if isinstance(first.rows, TaskTable):
        return TaskCorpus(first.store, first.rows)
    return Corpus(first.store, first.rows, *((each.store, each.rows) for each in others))


def _in_several_stores(joined: Sequence[JoinedSource]) -> list[str]:
    """A note of how many image ids are in more than one store: one photo may count twice."""
    stores = Counter(chain.from_iterable(each.rows.captioned_ids() for each in joined)) if len(joined) > 1 else {}
    shared = [image_id for image_id, number in stores.items() if number > 1]
    if not shared:
        return []
    ids = f"{plural(len(shared), 'image id')}, such as {printable(shared[0], 80)}"
    return [f"in more than one store: {ids}; if these are the same photos, they are trained on once for each store"]


def _not_held_out(joined: Sequence[JoinedSource], end_to_end: EndToEnd | None) -> list[str]:
    """Notes, without further files, of images that are trained on and that results are reported on."""
    captioned = chain.from_iterable(each.rows.captioned_ids() for each in joined)
    labelled = () if end_to_end is None or end_to_end.detector is None else end_to_end.detector.trained_ids()
    by_name = reported_by_name(chain(captioned, labelled))
    notes = [] if by_name is None else [by_name]
    # A Karpathy file's own images of val and test are left out; another source may have captions of them.
    elsewhere = {key for each in joined for name in each.source.other_splits for key in image_keys(name, FLICKR)}
    for each in joined if elsewhere else ():
        shared = [
            image_id
            for image_id in each.rows.captioned_ids()
            if not elsewhere.isdisjoint(known_keys(image_id, each.source.data_set))
        ]
        if shared:
            notes.append(
                f"{each.store.path}: {plural(len(shared), 'image')} that are trained on are in other splits of a "
                f"caption file, such as {printable(shared[0], 80)}: results on them are not held-out results"
            )
    return notes


def _with_labelled(
    end_to_end: EndToEnd, guard: LeakGuard | None, kept_out: KeptOut | None, data_set: str | None
) -> EndToEnd:
    """The settings with those labelled photos alone that may be trained on."""
    part = end_to_end.detector
    if part is None or part.labelled is None:
        return end_to_end
    labelled = part.labelled
    if guard is not None:
        labelled = guard.kept_photos(labelled, data_set)
    if kept_out is not None:
        labelled = kept_out.without_labelled(labelled, data_set)
    return dataclasses.replace(end_to_end, detector=dataclasses.replace(part, labelled=labelled))


def _searched(
    evaluated: JoinedSource, images: int, photos: RecordPhotos | None, end_to_end: EndToEnd | None
) -> tuple[JoinedSource, EvaluationSet, dict[str, str]]:
    """Held-out captions, those of them that are searched, and photos that cannot be used: a search needs all."""
    left_out: dict[str, str] = {}
    while True:
        chosen = evaluation_set(corpus_of([evaluated]), max_images=images)
        broken: dict[str, str] = {}
        if end_to_end is not None and photos is not None:
            broken = end_to_end.broken_photos(evaluated.store, photos, chosen.image_ids)
        if not broken:
            return evaluated, chosen, left_out
        left_out |= broken
        rows = evaluated.rows.without(broken)
        if len(rows.captioned_ids()) < 2:
            raise ValueError(
                f"{evaluated.store.path}: {len(left_out):,} photos of held-out captions cannot be used, so a search "
                f"has no two images; the first: {next(iter(left_out.values()))}; give --validation-captions of "
                f"others, or leave data.validation_retrieval at 0"
            )
        evaluated = dataclasses.replace(evaluated, rows=rows)


def _review(system: System, one: JoinedSource, sampling: Any) -> list[str]:
    """Notes of what the rules treat otherwise in one source; pairs are drawn inside it, so each is checked alone."""
    try:
        return one.prefixed(system.review(corpus_of([one]), sampling))
    except ValueError as error:
        raise ValueError(*one.prefixed([str(error)])) from None
