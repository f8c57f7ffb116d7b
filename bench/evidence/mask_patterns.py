"""A classifier that sees nothing of a pair but which of its words and regions are hidden or predicted.

It must say "matches" right half of the time: else the masks tell what a model is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from roibeam.features.store import FeatureStore
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.captioned_store import join_captions
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.vocabulary import known_classes
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

SAMPLES = 8000  # one half to learn from, the other to be asked about
PLACES = 40  # of words, and of regions, that it sees
STEPS, RATE = 300, 0.01
BLOCK = 20  # samples whose answers are kept together


@dataclass(frozen=True, eq=False)
class Patterns:
    """(blocks of samples,) each: how often the classifier was right, of how often it was asked."""

    right: np.ndarray
    asked: np.ndarray


def patterns_tally(run: Path, store: FeatureStore, captions: Path, system: str, settings: Sequence[str]) -> Patterns:
    """Of samples as this run draws them; `settings` are those of its rules."""
    found = load_model(str(run))
    rows, _ = join_captions(store, CaptionFile(str(captions)).captions(), 0.0)
    corpus, rules = Corpus(store, rows), SYSTEMS[system]
    sampling = apply_overrides({"sampling": rules.sampling()}, settings)["sampling"]
    num_classes = known_classes(store, corpus.record(0)) if rules.class_objective is not None else 0
    sampler = rules.sampler(
        sampling, load_tokenizer(str(found.tokenizer)), found.model.config, num_classes=num_classes or 0
    )
    randoms = np.random.default_rng(0)
    samples = [
        sampler.sample(corpus, int(row), np.random.default_rng([1, number]))
        for number, row in enumerate(randoms.integers(len(corpus), size=SAMPLES))
    ]
    seen = np.stack([pattern(sample) for sample in samples])
    matches = np.array([sample.match for sample in samples], np.float32)
    half = SAMPLES // 2
    said = classify(seen[:half], matches[:half], seen[half:])
    right = (said == matches[half:]).reshape(-1, BLOCK).sum(axis=1)
    return Patterns(right, np.full(len(right), BLOCK))


def pattern(sample: PretrainSample) -> np.ndarray:
    """(3 * PLACES + 3,) float32: which pieces are predicted, which regions are hidden and predicted, and how many."""
    kinds = (sample.text_labels != IGNORE_INDEX, sample.masked, sample.predicted)
    places = [np.pad(kind[:PLACES], (0, max(0, PLACES - len(kind)))) for kind in kinds]
    return np.concatenate([*places, [kind.sum() for kind in kinds]]).astype(np.float32)


def classify(seen: np.ndarray, matches: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """What a network of one hidden layer, trained on (n, F) patterns and their (n,) matches, says of others: 0 or 1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(seen.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.05)
    inputs, labels = torch.from_numpy(seen), torch.from_numpy(matches)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(inputs)[:, 0], labels).backward()
        optimizer.step()
    with torch.inference_mode():
        return (net(torch.from_numpy(asked))[:, 0] > 0).numpy().astype(np.float32)
