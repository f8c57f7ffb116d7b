"""What the runs of `trajectory_cases` begin with: samples and weights.

All are drawn, from the name of the case or of the parameter, so nothing needs to be stored to do a run again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from trajectory_cases import FEATURE_SIZE, NUM_LABELS, ROWS, VOCABULARY, Case

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.data.batches.sample import PretrainSample

LONGEST_TEXT, MOST_REGIONS = 9, 6
MASK_PIECE = 3

Step = Sequence[Sequence[PretrainSample]]  # its micro-batches


def draw_samples(case: Case) -> list[Step]:
    """All samples of a run, ragged: in every micro-batch one row has nothing to predict, its others what is drawn.

    Micro-batches of one step have equally many words and regions to predict: of unequal ones the official codes take
    the mean of their means, and ours the mean over all.
    """
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    steps: list[Step] = []
    for step in range(case.train.steps):
        words, alone = random.integers(2, 6, 2)
        regions = 0 if case.region_pauses and step % 6 == 4 else int(random.integers(1, 5))
        batches = []
        for part in range(case.train.accumulation):
            names = [f"step {step} part {part} row {row}" for row in range(case.rows)]
            rows = [_draw_row(case, random, name, text_only=row >= ROWS) for row, name in enumerate(names)]
            _hide_words(random, rows[:ROWS], int(words))
            _hide_words(random, rows[ROWS:], int(alone))
            _hide_regions(random, rows[:ROWS], regions if case.labels else 0)
            batches.append(rows)
        steps.append(batches)
    return steps


def _draw_row(case: Case, random: np.random.Generator, name: str, *, text_only: bool) -> PretrainSample:
    pieces = int(random.integers(5, LONGEST_TEXT + 1))
    count = 0 if text_only else int(random.integers(3, MOST_REGIONS + 1))
    width, height = (1, 1) if text_only else (int(number) for number in random.integers(200, 400, 2))
    corner, extent = random.uniform(0, 80, (count, 2)), random.uniform(20, 100, (count, 2))
    features = random.standard_normal((count, FEATURE_SIZE)).astype(np.float32)
    targets = features if case.labels == FEATURE_SIZE else random.dirichlet(np.full(NUM_LABELS, 0.5), count)
    segments = np.arange(pieces) >= pieces // 2 if case.segments == 2 else np.zeros(pieces)
    return PretrainSample(
        sample_id=name,
        text_ids=random.integers(MASK_PIECE + 1, VOCABULARY, pieces),
        text_labels=np.full(pieces, IGNORE_INDEX),
        text_segments=segments.astype(np.int64),
        features=torch.from_numpy(features),
        boxes=np.concatenate([corner, corner + extent], axis=1).astype(np.float32),
        masked=np.zeros(count, bool),
        predicted=np.zeros(count, bool),
        region_targets=torch.from_numpy(targets.astype(np.float32)) if case.labels else None,
        height=height,
        width=width,
        match=int(random.integers(2)) if case.asks_match and not text_only else None,
        text_only=text_only if case.text_rows else None,  # None: a run without such rows
    )


def _hide_words(random: np.random.Generator, rows: Sequence[PretrainSample], count: int) -> None:
    places = [(row, place) for row in rows[1:] for place in range(1, len(row.text_ids) - 1)]
    for number in random.permutation(len(places))[:count]:
        row, place = places[number]
        row.text_labels[place] = row.text_ids[place]
        if random.random() < 0.8:
            row.text_ids[place] = MASK_PIECE


def _hide_regions(random: np.random.Generator, rows: Sequence[PretrainSample], count: int) -> None:
    places = [(row, place) for row in rows[:-1] for place in range(len(row.boxes))]
    for number in random.permutation(len(places))[:count]:
        row, place = places[number]
        row.predicted[place], row.masked[place] = True, random.random() < 0.9
    for row in rows:
        if row.targets is not None:
            row.targets[torch.from_numpy(~row.predicted)] = 0.0


def draw_parameter(name: str, shape: Sequence[int]) -> Tensor:
    """The start of one of our parameters, float64."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    if len(shape) == 1 and name.endswith("norm.weight"):
        return torch.from_numpy(1 + 0.1 * values)
    if name.startswith("vlbert.region_projection") and len(shape) == 2:
        return torch.from_numpy(0.02 * values)  # of 2064 inputs
    return torch.from_numpy((0.15 if len(shape) > 1 else 0.05) * values)
