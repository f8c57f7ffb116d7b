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


HAND_MADE = {
    "region_boxes": torch.tensor([[[0.0, 0.0, 30.0, 20.0]] * 3] * 2),
    "image_hw": torch.tensor([[20.0, 30.0]] * 2),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_mask": torch.tensor([[False, True, True, True, True]] * 2)}, "pad texts on the right"),
        (
            {"text_mask": torch.tensor([[True] * 4 + [False]] * 2), "text_labels": torch.zeros(2, 5, dtype=torch.long)},
            "text_labels has a label at padding; use -100 for none",
        ),
        (
            {
                "region_mask": torch.tensor([[True, True, False]] * 2),
                "region_target_mask": torch.ones(2, 3, dtype=torch.bool),
                "region_targets": torch.zeros(2, 3, 7),
            },
            "region_target_mask is True at padding",
        ),
        ({"match_labels": torch.tensor([1, 2])}, r"match_labels must be 0, 1 or -100, got \[1, 2\]"),
        ({"region_features": torch.full((2, 3, 8), torch.nan)}, "region_features holds NaN or infinity"),
        ({"region_boxes": HAND_MADE["region_boxes"] / 30}, "region_boxes lie in 0..1"),
        ({"image_hw": HAND_MADE["image_hw"].flip(-1)}, "region_boxes lie outside their images"),
        ({"image_hw": torch.zeros(2, 2)}, "image_hw must be heights and widths in pixels"),
        ({"region_boxes": torch.tensor([[[9.0, 9.0, 5.0, 5.0]] * 3] * 2)}, "they are x1 y1 x2 y2, not x y w h"),
    ],
)
def test_values_that_would_give_wrong_numbers_without_a_word(changes, message):
    make_batch(**HAND_MADE).check_values()
    with pytest.raises(ValueError, match=message):
        make_batch(**(HAND_MADE | changes)).check_values()


def test_features_alone_change_their_dtype():
    """Pixels beyond 256 have no place in bfloat16: a box of 257 would begin at 256 or 258."""
    batch = make_batch(**HAND_MADE, whole_image_features=torch.ones(2, 8)).to(dtype=torch.bfloat16)
    assert batch.region_features.dtype == batch.whole_image_features.dtype == torch.bfloat16
    assert batch.region_boxes.dtype == batch.image_hw.dtype == torch.float32 and batch.text_ids.dtype == torch.long
    assert batch.to("cpu").region_features.dtype == torch.bfloat16


def test_every_tensor_is_pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    batch = make_batch(sample_ids=("a", "b"))
    pinned = batch.pin_memory()
    assert pinned.sample_ids == ("a", "b") and torch.equal(pinned.text_ids, batch.text_ids)
    assert pinned.text_ids is not batch.text_ids and pinned.region_boxes is not batch.region_boxes


def test_a_tokenizers_and_a_stores_batch_become_one():
    tokens = {"input_ids": torch.ones(2, 5, dtype=torch.long), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]] * 2)}
    regions = {
        "image_ids": ["a", "b"], "features": torch.ones(2, 3, 8).half(), "boxes": HAND_MADE["region_boxes"],
        "region_mask": torch.ones(2, 3, dtype=torch.bool), "image_hw": torch.tensor([[20, 30]] * 2, dtype=torch.int32),
    }  # fmt: skip
    batch = VLBatch.from_regions(tokens, regions, match_labels=torch.tensor([1, 0]))
    assert batch.region_features.dtype == torch.float32 and batch.text_mask.sum(1).tolist() == [3, 3]
    assert batch.sample_ids == ("a", "b") and not batch.masked_regions.any() and batch.match_labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="regions have no boxes, region_mask; got image_ids, features, image_hw"):
        VLBatch.from_regions(tokens, {name: regions[name] for name in ("image_ids", "features", "image_hw")})
    with pytest.raises(ValueError, match="pad texts on the right"):
        VLBatch.from_regions(tokens | {"attention_mask": 1 - tokens["attention_mask"]}, regions)
    with pytest.raises(ValueError, match=r"tokens are lists; call the tokenizer with .*return_tensors='pt'"):
        VLBatch.from_regions({"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}, regions)
