"""Questions to pre-trained models about photos they have not seen: hidden words, retrieval by the matching head, and
at which detection a noun looks.

A hidden word is one that says something: any but `FUNCTION_WORDS`, which were listed before a model was asked. Each is
hidden by itself, and predicted with the caption's own photo, with another one, and with no region at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationRow, EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import evaluation_set, scored_rows
from roibeam.pipelines.analysis.evaluation.retrieval import has_match_head, retrieve
from roibeam.pipelines.analysis.head_accuracy import layers_of, words_at_regions
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.captioned_store import join_captions
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.vocabulary import known_classes
from roibeam.pipelines.training.model_files.joint_checkpoint import load_model_or_joint
from roibeam.pipelines.training.model_files.tokenizer import EncodedCaption, load_tokenizer

FUNCTION_WORDS = frozenset(
    "a an the and or but as at by for from in into of off on onto out over through to under up down with without near "
    "next behind beside between around across along against above below is are was be being been has have had his her "
    "its their them they he she it who which that this there while other another each one some . , ' \" - ! ;".split()
)
SEED, BATCH, PAIRS_AT_ONCE = 20, 64, 512
# Nouns of captions, and the class of the detector that they name; made before a head was asked.
NOUNS: Mapping[str, str] = {
    **{name: name for name in (
        "person", "bicycle", "car", "motorcycle", "bus", "train", "truck", "boat", "bench", "bird", "cat", "dog",
        "horse", "sheep", "cow", "elephant", "bear", "umbrella", "frisbee", "kite", "skateboard", "surfboard", "chair",
        "couch", "bed", "laptop", "book", "bottle", "cup",
    )},
    **dict.fromkeys((
        "man", "woman", "boy", "girl", "child", "people", "men", "women", "boys", "girls", "children", "kid", "kids",
        "guy", "player", "players", "lady", "toddler", "baby", "skateboarder", "biker", "cyclist", "surfer",
        "snowboarder", "skier", "climber",
    ), "person"),
    **dict.fromkeys(("dogs", "puppy", "puppies", "greyhound", "greyhounds"), "dog"),
    **dict.fromkeys(("bike", "bikes", "bicycles"), "bicycle"),
    **dict.fromkeys(("motorbike", "motorcycles", "motorbikes"), "motorcycle"),
    **dict.fromkeys(("birds", "duck", "ducks"), "bird"),
    **dict.fromkeys(("ball", "balls", "football"), "sports ball"),
    **dict.fromkeys(("boats", "canoe", "kayak"), "boat"),
    **dict.fromkeys(("cats", "kitten"), "cat"),
    "horses": "horse", "cars": "car", "cows": "cow", "surfboards": "surfboard", "sofa": "couch", "snowboard":
    "snowboard", "skis": "skis", "tie": "tie", "backpack": "backpack", "racket": "tennis racket", "bat": "baseball bat",
}  # fmt: skip
SEEN = 0.3  # score of a detection that counts
CPU = torch.device("cpu")


class Evaluation:
    """A model and the captions it is asked about.

    Args:
        captions: json of Karpathy; its split `split` is asked about.
        max_regions: of a photo; 0 = all.
    """

    def __init__(self, run: Path, store: FeatureStore, captions: Path, split: str, max_regions: int = 0) -> None:
        found = load_model_or_joint(str(run))
        self.model: Any = found.model
        self.tokenizer = load_tokenizer(str(found.tokenizer))
        self._corpus = Corpus(store, join_captions(store, CaptionFile(str(captions), split=split).captions(), 1.0)[0])
        self.samples = EvaluationSamples(
            self.model.config, self.tokenizer, num_classes=known_classes(store, self._corpus.record(0)),
            as_read=found.as_read, max_regions=max_regions,
        )  # fmt: skip
        self.chosen, self._most = evaluation_set(self._corpus), max_regions
        self._classes = store.manifest.classes or []

    def words(self, asked_ways: Sequence[str] = ("own", "other", "none")) -> dict[str, Any]:
        """By way: of each photo how many hidden words were right; "asked", of how many."""
        corpus = self._corpus
        first = corpus.record(0)
        nothing = RegionRecord(
            "no photo", first.height, first.width, first.boxes[:0], first.features[:0], first.class_ids[:0],
            first.class_scores[:0],
        )  # fmt: skip

        def another(row: int) -> RegionRecord:
            return corpus.record(corpus.draw_row_of_another_image(row, np.random.default_rng([SEED, row])))

        ways: Mapping[str, Callable[[int], RegionRecord]] = {
            "own": corpus.record, "other": another, "none": lambda row: nothing,
        }  # fmt: skip
        found: dict[str, Any] = {}
        for name in asked_ways:
            right, asked = self._words(ways[name])
            found |= {name: right, "asked": asked}
        return found

    def _words(self, record_of: Callable[[int], RegionRecord]) -> tuple[list[int], list[int]]:
        size = len(self.chosen.image_ids)
        right, asked = np.zeros(size, int), np.zeros(size, int)
        rows: list[EvaluationRow] = []
        photos: list[int] = []
        for row in map(int, self.chosen.rows):
            record = record_of(row)
            for ids, labels in self._hidden(self._corpus.caption(row)):
                rows.append(self.samples.row(record, ids, labels, np.zeros(record.num_regions, bool), match=1))
                photos.append(int(self.chosen.image_of_caption[row]))
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            randoms = [np.random.default_rng([SEED, start + place]) for place in range(len(part))]
            with torch.inference_mode():
                for place, (_, scored) in enumerate(scored_rows(self.model, self.samples, part, randoms, CPU)):
                    term = scored.metrics["masked_word_accuracy"]
                    asked[photos[start + place]] += 1
                    right[photos[start + place]] += int(term.total) == int(term.count)
        return right.tolist(), asked.tolist()

    def looks(self) -> dict[str, Any]:
        """Nouns that name the class of some of a photo's detections, not of all: which detection each head looks at.

        Returns:
            "photos": of each question its photo; "heads": [layer][head] of each whether the detection that it looks at
            most is of the class; "best score", "largest", "by lot": the same of three rules that do not look.
        """
        corpus, classes = self._corpus, self._classes
        found: dict[str, list[Any]] = {"photos": [], "heads": [], "best score": [], "largest": [], "by lot": []}
        for row in map(int, self.chosen.rows):
            record, encoded = corpus.record(row), self.samples.text(corpus.caption(row))
            names = np.array([classes[number] for number in record.class_ids])
            seen = self._most or record.num_regions  # of a record the first have the highest scores
            things = np.flatnonzero((record.class_scores >= SEEN) & ~np.isin(names, ("photo", "cell")))
            things = things[things < seen]
            asked = [
                (np.flatnonzero(encoded.word_ids == number)[-1], names[things] == NOUNS[word])
                for number, word in self._words_of(encoded)
                if word in NOUNS
            ]
            asked = [(piece, right) for piece, right in asked if right.any() and not right.all()]
            if not asked:
                continue
            batch = self.samples.batch([self.samples.seen(record, corpus.caption(row))])
            with torch.inference_mode():
                output = self.model.encode(batch, with_attention=True)
                layers = layers_of(output, len(encoded.ids))
                weights = words_at_regions(layers, 0, min(seen, record.num_regions))[..., things]
            areas = np.prod(record.boxes[things, 2:] - record.boxes[things, :2], axis=1)
            for piece, right in asked:
                found["photos"].append(int(self.chosen.image_of_caption[row]))
                found["heads"].append(right[weights[:, :, piece].argmax(dim=-1).numpy()].astype(int).tolist())
                found["best score"].append(int(right[record.class_scores[things].argmax()]))
                found["largest"].append(int(right[areas.argmax()]))
                found["by lot"].append(round(float(right.mean()), 4))
        return found

    def _words_of(self, encoded: EncodedCaption) -> Iterator[tuple[int, str]]:
        """Number and text of each word."""
        for number in range(int(encoded.word_ids.max()) + 1):
            pieces = encoded.ids[encoded.word_ids == number]
            yield number, "".join(self.tokenizer.piece(int(piece)).removeprefix("##") for piece in pieces)

    def _hidden(self, caption: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids and labels of the caption, once for each of its words to hide, all pieces of which are hidden."""
        encoded = self.samples.text(caption)
        for number, word in self._words_of(encoded):
            if word not in FUNCTION_WORDS:
                here = encoded.word_ids == number
                labels = np.where(here, encoded.ids, IGNORE_INDEX)
                yield np.where(here, self.tokenizer.mask_id, encoded.ids), labels

    def retrieved(self, scratch: Path) -> dict[str, Any] | None:
        """Ranks of photo to sentence and of sentence to photo; None for a model without a matching head."""
        if not has_match_head(self.model, self.samples, self.chosen, CPU):
            return None
        with torch.autocast("cpu", torch.bfloat16):
            both = retrieve(
                self.model, self.samples, self.chosen, folds=1, batch_size=PAIRS_AT_ONCE, device=CPU, scratch=scratch
            )
        return {each.name: each.ranks.tolist() for each in both}
