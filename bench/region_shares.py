"""How much of what a model makes of a region tells its class, and how much its colour:
`python bench/region_shares.py --store build/evidence/stores/perfect bench/evidence/weights/perfect/*`.

The share of variance is that between groups: 0 where the groups have one mean, 1 where a group's members are all alike.
What is measured is the visual part of a region's embedding: behind VL-BERT's projection and norm, elsewhere behind the
first linear layer. The first line has the features themselves.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

import numpy as np
import torch
from store_rounds import table
from torch import Tensor, nn

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.training.model_files.model_checkpoint import load_model


def share_between(vectors: np.ndarray, groups: np.ndarray) -> float:
    """Of the variance of (N, D) vectors, that of the means of their groups, (N,)."""
    whole = ((vectors - vectors.mean(axis=0)) ** 2).sum()
    members = [vectors[groups == group] for group in np.unique(groups)]
    return float(1 - sum(((own - own.mean(axis=0)) ** 2).sum() for own in members) / whole)


def embedded(model: Any, record: RegionRecord, features: Tensor) -> Tensor:
    """(R, H), the visual part of the embeddings of (R, D) features."""
    if isinstance(model, VLBertForPreTraining):
        own, boxes = model.vlbert, torch.from_numpy(np.asarray(record.boxes, dtype=np.float32))
        size = torch.tensor([[float(record.height), float(record.width)]])
        visuals = own.region_projection(features[None], boxes[None], size)
        made: Tensor = own.embeddings.visual_norm_region(own.embeddings.visual_widen_region(visuals))[0]
        return made
    first = next(
        part for part in model.modules() if isinstance(part, nn.Linear) and part.in_features == features.shape[1]
    )
    return first(features)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folders or runs")
    parser.add_argument("--store", required=True, help="of the toy world")
    parser.add_argument("--images", type=int, default=500)
    arguments = parser.parse_args()
    with FeatureStore(arguments.store) as store:
        records = list(islice(store, arguments.images))
    classes = np.concatenate([record.class_ids for record in records])
    colours = np.concatenate([record.attribute_ids for record in records])
    features = [torch.from_numpy(np.asarray(record.features, dtype=np.float32)) for record in records]
    found = {"features": torch.cat(features)}
    for path in arguments.models:
        model = load_model(path).model
        found[path] = torch.cat([embedded(model, *pair) for pair in zip(records, features, strict=True)])
    rows = [
        (name, *(f"{share_between(made.numpy(), groups):.2f}" for groups in (classes, colours)))
        for name, made in found.items()
    ]
    print(table(("of", "class", "colour"), rows))


if __name__ == "__main__":
    main()
