"""The page of a batch shows what is in it: pieces with what is to be predicted, hidden boxes, targets, order. And a
store's batch for a model is the same from arrays as from a DataLoader's tensors."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from roibeam import RegionDataset
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.regions import Regions
from roibeam.features import open_store, write_store
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.data.batches.image_batch import batch_photos
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.pretraining.batch_page import InspectedBatch, batch_html
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

CAPTION = "a <red> ball on the beach"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", [CAPTION] * 2)


def batch_of(tokenizer):
    ids = torch.from_numpy(tokenizer.encode(CAPTION).ids)
    labels = torch.full_like(ids, IGNORE_INDEX)
    labels[2:5] = ids[2:5]  # "<red>": hidden, replaced, left
    read = ids.clone()
    read[2], read[3] = tokenizer.mask_id, ids[6]
    target = torch.zeros(1, 3, 4)
    target[0, 1] = torch.tensor([0.1, 0.7, 0.0, 0.2])
    return VLBatch(
        text_ids=read[None], text_mask=torch.ones(1, len(ids), dtype=torch.bool),
        text_segments=torch.zeros(1, len(ids), dtype=torch.long), region_features=torch.zeros(1, 3, 5),
        region_boxes=torch.tensor([[[0.0, 0, 10, 10], [20, 20, 40, 50], [0, 0, 0, 0]]]),
        region_mask=torch.tensor([[True, True, False]]), image_hw=torch.tensor([[60.0, 80.0]]),
        masked_regions=torch.tensor([[False, True, False]]), text_labels=labels[None], region_targets=target,
        region_target_mask=torch.tensor([[False, True, False]]), match_labels=torch.tensor([0]),
        sample_ids=("photo-7",),
    )  # fmt: skip


def page_of(tokenizer, *, rows=1, **changes):
    batch = dataclasses.replace(batch_of(tokenizer), **changes)
    inspected = InspectedBatch(batch, rows, (("text", "regions", "end"),), {"masked_words": 3})
    return "".join(batch_html(inspected, tokenizer, Names(["cat", "dog", "tree"]), "First batch"))


def test_what_is_hidden_replaced_and_left_is_told_apart(tokenizer):
    page = page_of(tokenizer)
    pieces = [tokenizer.piece(int(piece)) for piece in tokenizer.encode(CAPTION).ids]
    assert pieces[2] == "<" and '<span class="piece hidden">[MASK]<b>&lt;</b></span>' in page
    assert f'<span class="piece swapped">{pieces[6]}<b>{pieces[3]}</b></span>' in page
    assert '<span class="piece kept">&gt;</span>' in page
    assert "<red>" not in page  # nothing of a caption is markup


def test_boxes_targets_order_and_denominators_are_there(tokenizer):
    page = page_of(tokenizer)
    assert "photo-7" in page and "the caption does not belong to the image" in page
    assert f"sequence: text {len(tokenizer.encode(CAPTION).ids)}, regions 2, end" in page
    assert "masked words: counted</dt><dd>3</dd>" in page
    assert page.count('fill-opacity="0.35"') == 1 and 'x="20.0" y="20.0" width="20.0" height="30.0"' in page
    assert "Photo not shown: <bdi>the photo is not known" in page and "<image" not in page
    assert "dog 0.70, background 0.20, cat 0.10" in page


def test_a_feature_to_predict_and_rows_that_are_not_asked_for(tokenizer):
    target = torch.zeros(1, 3, 5)
    target[0, 1] = torch.tensor([3.0, -4.0, 0, 0, 0])
    assert "its feature, 5 numbers of length 5.0" in page_of(tokenizer, region_targets=target)
    assert "photo-7" not in page_of(tokenizer, rows=0)


def test_the_legend_names_the_marks_of_this_page_alone(tokenizer):
    page = page_of(tokenizer)
    for mark in ("region as it is", "region that is hidden", "hidden, to predict", "left, to predict"):
        assert mark in page
    assert "names region 3" not in page and "region to predict, and seen" not in page
    quiet = torch.full((1, len(tokenizer.encode(CAPTION).ids)), IGNORE_INDEX)
    assert "to predict</span>" not in page_of(tokenizer, text_labels=quiet)
    assert "names region 3" in page_of(tokenizer, aligned_words=torch.tensor([[[1, -1], [-1, -1], [-1, -1]]]))


def test_photos_lie_under_the_boxes_and_the_page_stays_small(tokenizer):
    photos = {(0, 0): (b"jpeg" * 1000, "")}
    banner = Banner("Random weights.", "No meaning.")
    inspected = InspectedBatch(batch_of(tokenizer), 1, (("text", "regions"),), {}, photos, banner)
    page = "".join(batch_html(inspected, tokenizer, Names([]), "First batch"))
    assert page.index("No meaning.") < page.index("data:image/jpeg;base64,") < page.index('class="box"')
    photos = {(0, 0): (b"jpeg" * 400_000, "")}
    page = "".join(batch_html(dataclasses.replace(inspected, photos=photos), tokenizer, Names([]), "First batch"))
    assert "1 row left out" in page and len(page) < 100_000


def test_the_pixels_of_a_batch_are_shown_as_the_encoder_reads_them(tokenizer):
    """The photo alone, without the padding around it, in its own colours; a text without a photo takes none."""
    batch = batch_of(tokenizer)
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    two = {name: torch.cat([value, value]) for name, value in fields.items() if isinstance(value, torch.Tensor)}
    rows = dataclasses.replace(batch, **two, text_only=torch.tensor([True, False]), sample_ids=("text", "photo-7"))
    conventions = Conventions(channel_order="rgb", pixel_mean=(10.0, 20.0, 30.0), pixel_std=(2.0, 2.0, 2.0))
    pixels = torch.zeros(1, 3, 160, 200)
    pixels[:, 0, :120, :160] = 100.0  # the photo, twice its size, is red
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    images = ImageBatch(pixels=pixels, boxes=batch.region_boxes * 2, blanked_regions=nothing)
    shown = batch_photos(rows, images, conventions)
    assert list(shown) == [1]
    jpeg, _ = shown[1]
    photo = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert photo.shape == (120, 160, 3)
    assert np.abs(photo[60, 80].astype(int) - (30, 20, 210)).max() < 6 and photo[-1, -1, 2] > 190


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_says_in_what_order_it_reads(name):
    system = SYSTEMS[name]
    parts = [part for stream in system.layout(system.sizes["small"]()) for part in stream]
    assert {"text", "regions"} <= set(parts) <= {"text", "regions", "whole image", "end"}
    assert len(parts) == len(set(parts))


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
