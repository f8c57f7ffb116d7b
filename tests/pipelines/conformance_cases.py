"""Cases of `roibeam conformance` made for a test: inputs of a two-stream model, a case's file, and what missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness.runner import CaseResult, run_conformance
from torch import Tensor

from roibeam.model.inputs import IGNORE_INDEX, VLBatch

Arrays = dict[str, np.ndarray]


def two_stream_inputs(
    generator: torch.Generator, *, target_size: int, distributions: bool
) -> tuple[VLBatch, dict[str, Tensor]]:
    """Two rows of 6 pieces of 60 and 4 elements of width 10, some of them padding; and as a release names them.

    Args:
        distributions: whether targets are such.
    """
    ids = torch.randint(1, 60, (2, 6), generator=generator)
    segments = torch.randint(2, (2, 6), generator=generator)
    text_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    image_mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    features = torch.randn(2, 4, 10, generator=generator) * image_mask[..., None]
    corner, size = torch.rand(2, 2, 4, 2, generator=generator) * 0.5
    locations = torch.cat([corner, corner + size, size.prod(dim=-1, keepdim=True)], dim=-1) * image_mask[..., None]
    locations[:, 0] = torch.tensor([0, 0, 1, 1, 1.0])
    labels = torch.tensor([[-1, 4, -1, 9, -1, -1], [-1, -1, 2, -1, -1, -1]])
    region_labels = torch.tensor([[1, -1, 1], [-1, 1, -1]])
    targets = torch.randn(2, 3, target_size, generator=generator)
    targets = torch.softmax(targets, dim=-1) if distributions else targets
    random_caption = torch.tensor([0, 1])
    batch = VLBatch(
        text_ids=ids,
        text_mask=text_mask.bool(),
        text_segments=segments,
        region_features=features[:, 1:],
        region_boxes=locations[:, 1:, :4],
        region_mask=image_mask[:, 1:].bool(),
        image_hw=torch.ones(2, 2),
        masked_regions=torch.zeros(2, 3, dtype=torch.bool),
        whole_image_features=features[:, 0],
        text_labels=labels.masked_fill(labels == -1, IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=region_labels == 1,
        match_labels=1 - random_caption,
    )
    return batch, {
        "in/input_ids": ids,
        "in/attention_mask": text_mask,
        "in/token_type_ids": segments,
        "in/image_feat": features,
        "in/image_loc": locations,
        "in/image_attention_mask": image_mask,
        "in/image_target": targets,
        "in/masked_lm_labels": labels,
        "in/image_label": region_labels,
        "in/next_sentence_label": random_caption,
    }


def write(folder: Path, arrays: Arrays, name: str = "any_name") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)
    return folder


def run(folder: Path) -> CaseResult:
    """Of its only case."""
    (result,) = run_conformance(folder)
    return result


def missed(result: CaseResult) -> dict[str, str]:
    return {check.array: check.note for check in result.checks if not check.passed}


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}
