"""Held-out captions for the evaluations of a run: chosen, joined, kept out of what is trained on, and asked about."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roibeam.features.counted import counted
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.analysis.asked_model import NO_MATCH_HEAD
from roibeam.pipelines.analysis.evaluation.evaluation_results import figure_of
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import EvaluationSet
from roibeam.pipelines.analysis.evaluation.photo_features import PhotoFeatures
from roibeam.pipelines.analysis.evaluation.retrieval import has_match_head, retrieve
from roibeam.pipelines.common.statistics.bootstrap import Bootstrap
from roibeam.pipelines.common.statistics.verdict import Figure, Judged
from roibeam.pipelines.data.captioned.captioned_store import (
    CaptionedStore,
    JoinedSource,
    check_stores_agree,
    join_sources,
)
from roibeam.pipelines.data.captions.caption_table import CaptionTable
from roibeam.pipelines.data.image_identity import Key, image_keys
from roibeam.pipelines.data.photos import LabelledPhotos
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.pretraining.end_to_end.end_to_end_task import EndToEndTask
from roibeam.pipelines.pretraining.task import PretrainTask, evaluate
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Validation:
    """What each evaluation of a run asks.

    Attributes:
        task: the model that is trained, on the held-out captions: its losses and accuracies, with masks that training
            does not draw.
        search: what is searched beside; None for nothing.
    """

    task: PretrainTask | EndToEndTask
    search: Search | None = None

    def evaluate(self) -> Judged:
        """By name; retrieval as in `roibeam evaluate`, such as "text_to_image_r1"."""
        found = evaluate(self.task, max_samples=self.task.num_samples)
        return found if self.search is None else Judged([*found.figures, *self.search.recalls()])


@dataclass(frozen=True, eq=False)
class Search:
    """Zero-shot retrieval among held-out images, by the weights of the moment.

    Attributes:
        model: with a match head.
        num_classes: as of `EvaluationSamples`.
        chosen: images and captions; the first of the search's seed.
        batch_size: pairs at once.
        joint, photos: end to end, the model with its encoder, and where the photos are.
        as_read: as of `EvaluationSamples`.
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
        """
        Raises:
            ValueError: when the model cannot tell which pairs match.
        """
        with self._samples() as (samples, _, device):
            if not has_match_head(self.model, samples, self.chosen, device):
                raise ValueError(f"data.validation_retrieval: {NO_MATCH_HEAD}; leave it at 0, or train one of those")

    def recalls(self) -> list[Figure]:
        """R@1, R@5, R@10 of each way, as `roibeam evaluate` gives them."""
        with self._samples() as (samples, scratch, device):
            directions = retrieve(
                self.model,
                samples,
                self.chosen,
                folds=1,
                batch_size=self.batch_size,
                device=device,
                scratch=scratch,
            )
        images = len(self.chosen.image_ids)
        bootstrap = Bootstrap(images)
        return [figure_of(each, bootstrap) for direction in directions for each in direction.measures(images)]

    @contextmanager
    def _samples(self) -> Iterator[tuple[EvaluationSamples, Path, torch.device]]:
        """Made for the weights of the moment, while the model is in evaluation mode; with a scratch folder."""
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
    """The photos that evaluations ask about: nothing of them is trained on, by whatever id (`image_identity`).

    Attributes:
        keys: what the photos are known by.
        ids: of them, as their store has them. The same id is the same photo, too, unless both of two data sets are
            known and differ.
        data_set: of the photos, None where that is not known.
    """

    keys: Set[Key]
    ids: Set[str] = frozenset()
    data_set: str | None = None

    @classmethod
    def of(cls, asked: JoinedSource) -> KeptOut:
        ids, data_set = asked.rows.captioned_ids(), asked.source.data_set
        return cls({key for each in ids for key in image_keys(each, data_set)}, frozenset(ids), data_set)

    def without(self, source: JoinedSource) -> JoinedSource:
        """What is left of a source.

        Raises:
            ValueError: when that is nothing.
        """
        captioned = source.rows.captioned_ids()
        asked = self._among(captioned, source.source.data_set)
        if not asked:
            return source
        if len(asked) == len(captioned):
            raise ValueError(
                f"{source.store.path}: all of {len(asked):,} captioned images are validated on; nothing is left to "
                f"train on: give --captions and --validation-captions of different images"
            )
        note = f"{counted(len(asked), 'image')} not trained on: the evaluations ask about images of the same file"
        return dataclasses.replace(source, rows=source.rows.without(asked), notes=(*source.notes, note))

    def without_labelled(self, photos: LabelledPhotos, data_set: str | None) -> LabelledPhotos:
        """What is left of labelled photos; `data_set` is that of the store. ValueError when that is nothing."""
        asked = set(self._among((image.image_id for image in photos.images), data_set))
        kept = tuple(image for image in photos.images if image.image_id not in asked)
        if not kept:
            raise ValueError(f"all of {len(asked):,} labelled photos of {photos.root} are validated on; none is left")
        if asked:
            logger.info("%s not trained on: the evaluations ask about them", counted(len(asked), "labelled photo"))
        return dataclasses.replace(photos, images=kept)

    def _among(self, image_ids: Iterable[str], data_set: str | None) -> list[str]:
        by_id = self.ids if None in (self.data_set, data_set) or self.data_set == data_set else frozenset()
        return [each for each in image_ids if each in by_id or not self.keys.isdisjoint(image_keys(each, data_set))]


def join_validation(
    source: CaptionedStore, stores: Sequence[FeatureStore], *, most_pieces: int | None, captions: int
) -> tuple[JoinedSource, KeptOut]:
    """The captions that evaluations ask about, and what is not trained on for it: all images of their file.

    Args:
        source: of the feature space of those that are trained on; the same store may be among them.
        stores: of the run.
        most_pieces: as of `UsableCaptions`.
        captions: about so many are asked about, of images drawn by a fixed seed; 0 = all.
    Raises:
        ValueError: when stores do not fit.
    """
    check_stores_agree([stores[0], source.store])
    (found,) = join_sources([source], most_pieces=most_pieces, guard=None)
    found = dataclasses.replace(found, prefix="validation: ")
    kept_out = KeptOut.of(found)
    if captions and captions < len(found.rows):
        found = dataclasses.replace(found, rows=found.rows.share_of_images(captions / len(found.rows), 0))
    logger.info("evaluations ask about %s", told(found.rows))
    return found, kept_out


def told(rows: CaptionTable) -> str:
    return f"{counted(len(rows), 'held-out caption')} of {counted(len(rows.captioned_ids()), 'image')}"
