"""A store's batch for a model: the same from arrays as from a DataLoader's tensors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from roibeam import RegionDataset
from roibeam.extraction.regions import Regions
from roibeam.features import open_store, write_store
from roibeam.model.inputs import VLBatch


def test_a_models_batch_is_the_same_from_arrays_as_from_tensors(tmp_path: Path) -> None:
    random, rows = np.random.default_rng(0), []
    for image_id, number in (("a", 2), ("b", 0), ("c", 3)):
        boxes = np.sort(random.uniform(0, 40, (number, 2, 2)), axis=1).reshape(number, 4)
        features = random.standard_normal((number, 8), np.float32)
        rows.append({"image_id": image_id, "features": features, "boxes": boxes, "height": 40, "width": 40})
    write_store(tmp_path / "s", rows, feature_space="mine", dtype="float16")
    tokens = {"input_ids": torch.ones(3, 4, dtype=torch.long), "attention_mask": torch.ones(3, 4, dtype=torch.long)}
    with open_store(tmp_path / "s") as store:
        ids = list(store.ids())
        arrays = VLBatch.from_regions(tokens, store.get_batch(ids))
        tensors = VLBatch.from_regions(tokens, next(iter(DataLoader(RegionDataset(store), batch_size=3))))
        with pytest.raises(ValueError, match="regions have no region_mask; got image_ids, features, boxes, image_hw"):
            VLBatch.from_regions(tokens, store.get_batch(ids[:1], ragged=True))
        records = VLBatch.from_regions(tokens, [store[image_id] for image_id in ids])
        with pytest.raises(ValueError, match=r"list of records, got RegionRecord; write \[record\]"):
            VLBatch.from_regions(tokens, store["a"])  # type: ignore[arg-type]
    regions = Regions(*(np.zeros((0, 4)) for _ in range(4)), None, None, *(np.zeros(0) for _ in range(2)))
    for wrong in (regions, [regions]):
        with pytest.raises(ValueError, match=r"got Regions; .* do not have the photo's size, extract_regions gives"):
            VLBatch.from_regions(tokens, wrong)  # type: ignore[arg-type]
    assert arrays.sample_ids == tensors.sample_ids == tuple(ids)
    assert arrays.region_mask.sum(1).tolist() == [2, 0, 3]
    for name in ("region_features", "region_boxes", "region_mask", "image_hw", "masked_regions"):
        torch.testing.assert_close(getattr(arrays, name), getattr(tensors, name), rtol=0, atol=0)
        torch.testing.assert_close(getattr(arrays, name), getattr(records, name), rtol=0, atol=0)
