"""The door of every model: a batch whose shapes do not fit says which field."""

import dataclasses

import pytest
import torch

from roibeam.model.inputs import VLBatch


def make_batch(**changes):
    fields = {
        "text_ids": torch.zeros(2, 5, dtype=torch.long),
        "text_mask": torch.ones(2, 5, dtype=torch.bool),
        "text_segments": torch.zeros(2, 5, dtype=torch.long),
        "region_features": torch.zeros(2, 3, 8),
        "region_boxes": torch.zeros(2, 3, 4),
        "region_mask": torch.ones(2, 3, dtype=torch.bool),
        "image_hw": torch.ones(2, 2),
        "masked_regions": torch.zeros(2, 3, dtype=torch.bool),
    }
    return VLBatch(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_mask": torch.ones(2, 4, dtype=torch.bool)}, r"text_mask must be \(2, 5\), got shape \(2, 4\)"),
        ({"region_boxes": torch.zeros(2, 3, 5)}, r"region_boxes must be \(2, 3, 4\)"),
        ({"region_mask": torch.ones(3, dtype=torch.bool)}, r"region_mask must be \(2, 3\)"),
        ({"text_ids": torch.zeros(2, 5)}, "text_ids must be long, got torch.float32"),
        ({"masked_regions": torch.zeros(2, 3)}, "masked_regions must be bool"),
        ({"image_hw": torch.ones(2, 2, dtype=torch.long)}, "image_hw must be floating point"),
        ({"region_targets": torch.zeros(2, 3, 7)}, "come together"),
        ({"sample_ids": ("a",)}, "1 sample_ids for 2 rows"),
    ],
)
def test_batch_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        make_batch(**changes)


def test_batch_moves_every_tensor_and_keeps_names():
    batch = make_batch(sample_ids=("a", "b"), match_labels=torch.ones(2, dtype=torch.long)).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 9 and all(tensor.device.type == "meta" for tensor in tensors)
    assert batch.sample_ids == ("a", "b")
    assert dataclasses.is_dataclass(batch)


def make_targets():
    """Of a batch with predicted regions in both rows, (2, 3, 7)."""
    predicted = torch.tensor([[True, False, True], [False, True, False]])
    return torch.arange(42.0).reshape(2, 3, 7), predicted


def test_targets_of_predicted_regions_alone_are_those_of_all():
    targets, predicted = make_targets()
    dense = make_batch(region_targets=targets, region_target_mask=predicted)
    compact = make_batch(region_targets=targets[predicted], region_target_mask=predicted)
    assert compact.compact_targets and not dense.compact_targets
    for chosen in (predicted, predicted.clone(), torch.tensor([[True, False, False]] * 2) & predicted):
        assert torch.equal(compact.targets_of(chosen), dense.targets_of(chosen))
    for row in (0, 1):
        of_row = compact.row(row)
        assert torch.equal(of_row.targets_of(of_row.region_target_mask), targets[row][predicted[row]])


def test_rows_share_texts_and_images_that_are_there():
    rows = {"row_images": torch.tensor([0, 1, 1]), "row_texts": torch.tensor([1, 1, 0])}
    batch = make_batch(**rows, sample_ids=("a", "b", "c"))
    assert batch.batch_size == 3 and batch.rows_region_mask.shape == (3, 3) and batch.rows_text_mask.shape == (3, 5)
    assert batch.row(2).text_ids.shape == (1, 5) and batch.row(2).row_images is None
    with pytest.raises(ValueError, match="row_images must be from 0 to 1, got"):
        make_batch(**rows | {"row_images": torch.tensor([0, 1, 2])})
    with pytest.raises(ValueError, match="row_texts and text_only do not go together"):
        make_batch(**rows, text_only=torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"row_images must be \(2\), got shape \(3,\)"):
        make_batch(row_images=torch.tensor([0, 1, 1]))
