"""What `make evidence` asks of a trained model beside what `roibeam evaluate` does, picture by picture.

Grounded words are those that a caption says of things in its picture: kinds, colours, patterns and the like. Each is
hidden by itself and predicted, with the picture, with another one, and with none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.arms import BESIDE, MATCHING, OVERLAP_NAMES, REGIONS, RETRIEVAL, WORDS, WORDS_ALONE
from evidence.beside import BesideCaptions
from evidence.worlds import World
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationRow, EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import (
    EvaluationSet,
    evaluation_set,
    matching_measures,
    scored_rows,
)
from roibeam.pipelines.analysis.evaluation.retrieval import retrieve
from roibeam.pipelines.analysis.load_for_evaluation import PhotoFeatures
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.captioned_store import join_captions
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.data.vocabulary import known_classes
from roibeam.pipelines.toyworld.captions import PLURALS
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

SEED = 20  # of wrong pictures and of the regions asked about
BATCH = 64
REGIONS_ASKED = 3  # of a picture
OVERLAPS = (0.1, 0.5)  # borders between regions that stand alone, touch others, and are mostly covered by one
GROUNDED = frozenset(ATTRIBUTES) | {
    word for name in CATEGORIES for word in (name, PLURALS.get(name, name + "s"))
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tally:
    """(pictures,) each: how many were right, of how many."""

    right: np.ndarray
    asked: np.ndarray


class Asked:
    """A model and the pictures that it is asked about. One that was trained end to end looks at their photos.

    Args:
        device: where it computes, as torch names it.
    """

    def __init__(self, run: Path, store: FeatureStore, world: World, *, device: str = "cpu") -> None:
        found = load_model_or_joint(str(run))
        self._device = torch.device(device)
        self.model: Any = found.model.to(self._device)
        self._scratch, self._world, self._store = world.work, world, store
        self.tokenizer = load_tokenizer(str(found.tokenizer))
        rows, _ = join_captions(store, CaptionFile(str(world.captions("test"))).captions(), 1.0)
        corpus, features = Corpus(store, rows), None
        if isinstance(found, JointCheckpoint):
            photos = RecordPhotos.of_all(store, rows.captioned_ids(), None)
            features = PhotoFeatures(found.joint, photos, scratch=world.work, device=self._device)
        classes = known_classes(store, corpus.record(0))
        self.samples = EvaluationSamples(
            self.model.config, self.tokenizer, num_classes=classes, features=features, as_read=found.as_read
        )
        self.chosen: EvaluationSet = evaluation_set(corpus)

    def measured(self, asked: Sequence[str]) -> dict[str, Tally]:
        """By name, such as "words true" or "text_to_image_r1"."""
        questions: Mapping[str, Callable[[], Iterator[tuple[str, Tally]]]] = {
            WORDS: self.words,
            WORDS_ALONE: self.words_alone,
            REGIONS: self.regions,
            MATCHING: self.matching,
            RETRIEVAL: self.retrieval,
            BESIDE: self.beside,
        }
        return {name: tally for question in asked for name, tally in questions[question]()}

    def words(self, hidden: Set[str] = GROUNDED) -> Iterator[tuple[str, Tally]]:
        """With the caption's own picture, and with another one."""
        corpus = self.chosen.corpus
        yield "words true", self._words(corpus.record, hidden)

        def another(row: int) -> RegionRecord:
            return corpus.record(corpus.draw_row_of_another_image(row, np.random.default_rng([SEED, row])))

        yield "words wrong", self._words(another, hidden)

    def words_alone(self) -> Iterator[tuple[str, Tally]]:
        nothing = _nothing(self.chosen.corpus.record(0))
        yield "words alone", self._words(lambda row: nothing, GROUNDED)

    def _words(self, record_of: Callable[[int], RegionRecord], hidden: Set[str]) -> Tally:
        rows: list[EvaluationRow] = []
        pictures: list[int] = []
        for row in map(int, self.chosen.rows):
            record = record_of(row)
            for ids, labels in self._hidden(self.chosen.corpus.caption(row), hidden):
                rows.append(self.samples.row(record, ids, labels, np.zeros(record.num_regions, bool), match=1))
                pictures.append(int(self.chosen.image_of_caption[row]))
        return self._tally(self._each(rows, "masked_word_accuracy"), pictures)

    def _hidden(self, caption: str, hidden: Set[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and labels of the caption, once for each of its words to hide, all pieces of which are hidden."""
        encoded = self.samples.text(caption)
        words = caption.split()
        for number, word in enumerate(words):
            if word in hidden:
                here = encoded.word_ids == number
                labels = np.where(here, encoded.ids, IGNORE_INDEX)
                yield np.where(here, self.tokenizer.mask_id, encoded.ids), labels

    def regions(self) -> Iterator[tuple[str, Tally]]:
        """One region hidden at a time, all others in sight: with the caption, without, and by how much of it they
        show."""
        rows: dict[str, list[EvaluationRow]] = {"with text": [], "without text": []}
        pictures: list[int] = []
        overlaps: list[float] = []
        corpus = self.chosen.corpus
        no_text = np.array([self.tokenizer.cls_id, self.tokenizer.sep_id])
        for row in map(int, self.chosen.rows):
            record, ids = corpus.record(row), self.samples.text(corpus.caption(row)).ids
            random = np.random.default_rng([SEED, row])
            for region in random.permutation(record.num_regions)[:REGIONS_ASKED]:
                masked = np.arange(record.num_regions) == region
                for name, text in (("with text", ids), ("without text", no_text)):
                    unasked = np.full(len(text), IGNORE_INDEX)
                    rows[name].append(self.samples.row(record, text, unasked, masked, match=1))
                pictures.append(int(self.chosen.image_of_caption[row]))
                overlaps.append(largest_overlap(record.boxes, int(region)))
        kind = np.digitize(overlaps, OVERLAPS)
        for name, asked in rows.items():
            right = self._each(asked, "masked_region_accuracy")
            yield f"regions {name}", self._tally(right, pictures)
            for number, overlap in enumerate(OVERLAP_NAMES):
                here = np.flatnonzero(kind == number)
                tally = self._tally([right[place] for place in here], [pictures[place] for place in here])
                yield f"regions {name} {overlap}", tally

    def matching(self) -> Iterator[tuple[str, Tally]]:
        for measure in matching_measures(
            self.model, self.samples, self.chosen, seed=SEED, batch_size=BATCH, device=self._device
        ):
            if measure.name == "matching_accuracy":
                yield "matching", Tally(measure.sums, measure.counts)

    def retrieval(self) -> Iterator[tuple[str, Tally]]:
        directions = retrieve(
            self.model, self.samples, self.chosen, folds=1, batch_size=256, device=self._device, scratch=self._scratch
        )
        for direction in directions:
            for measure in direction.measures(len(self.chosen.image_ids)):
                yield measure.name, Tally(measure.sums, measure.counts)

    def beside(self) -> Iterator[tuple[str, Tally]]:
        """Matching and retrieval with a true caption of the candidate picture before the one that is asked about."""
        rows, _ = join_captions(self._store, CaptionFile(str(self._world.captions("beside"))).captions(), 1.0)
        other = BesideCaptions(self.model, self.samples, self.chosen, Corpus(self._store, rows), self._device)
        yield f"matching {BESIDE}", Tally(*other.matching(SEED))
        for name, right, asked in other.retrieval():
            yield f"{name} {BESIDE}", Tally(right, asked)

    @torch.inference_mode()
    def _each(self, rows: Sequence[EvaluationRow], name: str) -> list[tuple[float, int]]:
        """Right, and asked, of each row."""
        found = []
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            randoms = [np.random.default_rng([SEED, start + place]) for place in range(len(part))]
            for _, scored in scored_rows(self.model, self.samples, part, randoms, self._device):
                term = scored.metrics[name]
                found.append((float(term.total), int(term.count)))
        return found

    def _tally(self, each: Sequence[tuple[float, int]], pictures: Sequence[int]) -> Tally:
        size = len(self.chosen.image_ids)
        right, asked = np.array(each or [(0, 0)]).T
        places = np.array(pictures or [0])
        return Tally(np.bincount(places, right, size), np.bincount(places, asked, size))


def largest_overlap(boxes: np.ndarray, region: int) -> float:
    """The largest IoU of a region's box with another's.

    Args:
        boxes: (R, 4), x1 y1 x2 y2.
    """
    others = np.delete(boxes, region, axis=0)
    corner = np.minimum(others[:, 2:], boxes[region, 2:]) - np.maximum(others[:, :2], boxes[region, :2])
    shared = np.clip(corner, 0, None).prod(axis=1)
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    union = np.delete(areas, region) + areas[region] - shared
    return float((shared / np.maximum(union, 1e-9)).max(initial=0.0))


def _nothing(like: RegionRecord) -> RegionRecord:
    """A record without a region."""
    return RegionRecord(
        image_id="no image",
        height=like.height,
        width=like.width,
        boxes=like.boxes[:0],
        features=like.features[:0],
        class_ids=like.class_ids[:0],
        class_scores=like.class_scores[:0],
    )
