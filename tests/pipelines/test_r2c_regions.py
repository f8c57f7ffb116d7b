"""VisualBERT's regions on VCR, R2C's: a ResNet-50 of torchvision's file that is told outlines in channels of its map,
classes of boxes beside the features, and the whole image as the first region; trained along, or fixed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import end_to_end_examples as examples
import numpy as np
import pytest
import torch
import torchvision
from photo_groups import PhotoFinetuning, write_outlines
from photo_store import HEIGHTS_WIDTHS, PhotoStore, write_photo_store
from safetensors.torch import load_file
from small_pretraining import settings
from test_vcr_training import batches_of, made_store, network_for, questions, words

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import STAGES, prepare_photo
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import TaskBatch
from roibeam.pipelines.finetuning.run.group_task import PhotoTask
from roibeam.pipelines.finetuning.run.task_start import task_encoder
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.task import BoxClasses
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions, open_vcr
from roibeam.pipelines.finetuning.tasks.vcr_rules import region_masks
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions
from roibeam.pipelines.training.parameter_groups import group_parameters
from roibeam.pipelines.training.requests import EncoderRequest

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_CLASSES = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PhotoStore:
    """With VCR's outlines beside the photos. Nothing may be changed there."""
    found = write_photo_store(tmp_path_factory.mktemp("photos"), feature_dim=examples.FEATURES)
    write_outlines(found)
    return found


@pytest.fixture
def store(made: PhotoStore) -> Iterator[FeatureStore]:
    with FeatureStore(made.path) as opened:
        yield opened


def classes_of(group: TaskGroup) -> np.ndarray:
    """Of the boxes of a photo, from 1 on."""
    return 1 + np.arange(8) % (NUM_CLASSES - 1)


def run_of(made: PhotoStore, folder: Path, *, outlines: Any = region_masks, **how: Any) -> PhotoFinetuning:
    """VisualBERT on four questions, through R2C's arithmetic at a size of milliseconds."""
    encoder = {"frozen_stages": (), "mask_channels": 8, **how.pop("encoder", {})}
    shown = {"input_classes": BoxClasses(NUM_CLASSES, how.pop("classes", classes_of)), "whole_region": True}
    config = settings(steps=2, checkpoint_every=1, weight_decay=0.0)
    return PhotoFinetuning(
        made.path, folder, config, 4, system="visualbert", whole_image="model",
        conventions="r2c", encoder=encoder, shown=shown, photos={"outlines": outlines, "flip": False}, **how,
    )  # fmt: skip


def first_batch(task: PhotoTask) -> TaskBatch:
    return next(task.batches(0, rank=0, num_ranks=1))


def loss_in(task: PhotoTask) -> float:
    with torch.no_grad():
        return float(task.losses(task.model, first_batch(task)).losses["task"].mean)


def features_of(state: dict[str, torch.Tensor], task: PhotoTask, batch: TaskBatch) -> torch.Tensor:
    """(I, R, D) of a batch by an encoder of that state."""
    joint: Any = task.model
    own = {name: state[f"region_encoder.{name}"] for name in joint.region_encoder.state_dict()}
    joint.region_encoder.load_state_dict(own)
    images: Any = batch.images
    with torch.no_grad():
        return joint.region_encoder(images.pixels, images.boxes, batch.inputs.region_mask, images.cell_weights)


@pytest.mark.parametrize("frozen", [(), (1, 2, 3, 4), tuple(STAGES)])
def test_the_resnet_is_trained(made: PhotoStore, store: FeatureStore, tmp_path: Path, frozen: tuple[int, ...]) -> None:
    """What tells outlines and classes is trained in any case; of the ResNet whatever is not frozen."""
    run = run_of(made, tmp_path / "run", encoder={"frozen_stages": frozen})
    task = run.task(store)
    start = {name: each.clone() for name, each in task.model.state_dict().items()}
    run()
    trained = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "model" / "model.safetensors")
    moved = {name for name, each in trained.items() if not torch.equal(each, start[name])}
    for number, stage in STAGES.items():
        weights = [name for name in start if name.startswith(f"region_encoder.{stage}.") and name.endswith("weight")]
        convolutions = {name for name in weights if start[name].ndim == 4}
        assert convolutions
        if number in frozen:
            assert not moved & set(weights), stage
        else:
            assert convolutions <= moved, stage
    beside = ("mask_conv.weight", ".classed.classes.weight", ".classed.dense.weight", ".projection.weight")
    assert all(any(name.endswith(end) for name in moved) for end in beside)
    batch = first_batch(task)
    before, after = features_of(start, task, batch), features_of(trained, task, batch)
    assert float((after - before).abs().max()) > 1e-4
    if len(frozen) == len(STAGES):  # without what tells outlines, they stay
        stays = {name: start[name] if "mask_conv" in name else each for name, each in trained.items()}
        assert torch.equal(features_of(stays, task, batch), before)


def test_the_releases_rule_for_parameters_knows_them(made: PhotoStore, store: FeatureStore, tmp_path: Path) -> None:
    """Its "detector" is trained as the rest, biases without decay; the pooler is not, by accident."""
    model = run_of(made, tmp_path).task(store).model
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    decays = {
        names[id(each)]: "weight_decay" not in group
        for group in group_parameters(model, "visualbert-ucla", learning_rate=2e-5)
        for each in group["params"]
    }
    assert {name for name in names.values() if "pooler" in name} == names.values() - decays.keys()
    told = {name: decays[name] for name in decays if "mask_conv" in name or ".classed." in name}
    assert len(told) == 5 and all(way == name.endswith("weight") for name, way in told.items())
    assert decays["region_encoder.backbone.stem.conv1.weight"]


def test_the_whole_image_is_the_first_region(made: PhotoStore, store: FeatureStore, tmp_path: Path) -> None:
    """All of the photo, all of it inside its outline, of class 0, and no word names it; words name the boxes behind."""
    whole, without = (run_of(made, tmp_path).task(store), replace(run_of(made, tmp_path), shown={}).task(store))
    batch, plain = first_batch(whole), first_batch(without)
    images, inputs = batch.images, batch.inputs
    assert images is not None and plain.images is not None and images.cell_weights is not None
    assert inputs.region_classes is not None and plain.images.cell_weights is not None
    assert inputs.region_mask.sum(1).tolist() == [1 + count for count in plain.inputs.region_mask.sum(1).tolist()]
    sizes = [HEIGHTS_WIDTHS[int(name.removeprefix("group-"))] for name in batch.ids]
    assert inputs.region_boxes is not None and inputs.region_boxes[:, 0].tolist() == [[0, 0, w, h] for h, w in sizes]
    assert torch.equal(images.boxes[:, 1:], plain.images.boxes) and not images.boxes[:, 0, :2].any()
    assert bool((images.cell_weights[:, 0] == 1).all())
    assert torch.equal(images.cell_weights[:, 1:], plain.images.cell_weights)
    assert not inputs.region_classes[:, 0].any()
    real = plain.inputs.region_mask
    assert bool((inputs.region_classes[:, 1:][real] > 0).all())
    assert inputs.aligned_words is not None and plain.inputs.aligned_words is not None
    assert bool((inputs.aligned_words[:, 0] == -1).all())
    assert torch.equal(inputs.aligned_words[:, 1:], plain.inputs.aligned_words)


def test_outlines_and_classes_are_seen(made: PhotoStore, store: FeatureStore, tmp_path: Path) -> None:
    """Outlines of other boxes, whole boxes, other classes: each is another input, and gradients reach what tells it."""

    def turned(photo: str, record: RegionRecord, side: int) -> np.ndarray:
        return np.roll(region_masks(photo, record, side), 1, axis=0)

    def others(group: TaskGroup) -> np.ndarray:
        return classes_of(group)[::-1]

    runs = (run_of(made, tmp_path), run_of(made, tmp_path, outlines=turned), run_of(made, tmp_path, outlines=None),
            run_of(made, tmp_path, classes=others))  # fmt: skip
    losses = [round(loss_in(run.task(store)), 6) for run in runs]
    assert len(set(losses)) == len(runs), losses
    task = runs[0].task(store)
    batch = first_batch(task)
    task.losses(task.model, batch).losses["task"].mean.backward()
    joint: Any = task.model
    told = {name: each.grad for name, each in joint.named_parameters() if "mask_conv" in name or "classed" in name}
    assert len(told) == 5 and all(grad is not None and bool(grad.any()) for grad in told.values())
    assert bool(joint.region_encoder.backbone.stem.get_parameter("conv1.weight").grad.any())


@pytest.mark.parametrize("layout", ["shown", "all", "stored"])
def test_on_stored_features_the_layout_says_what_the_whole_image_is(tmp_path: Path, layout: str) -> None:
    task, tokenizer = open_vcr(questions(tmp_path), VcrOptions(whole_region=True), None), words()
    opened: Any = made_store()
    for name, each in list(opened.items()):
        opened[name] = replace(each, image_feature=each.features.max(axis=0))
    network = network_for("visualbert", tokenizer, 48)
    options = LayoutOptions(whole_image=layout)
    first = task.read("train").groups[0]
    group = replace(first, facts={**first.facts, "input_boxes": (1, 3)})
    inputs = batches_of("visualbert", task, opened, tokenizer, network, options).batch([group]).inputs
    record = opened["train0"]
    features = record.features.astype(np.float32)
    wanted = {"shown": features[[1, 3]].mean(0), "all": features.mean(0), "stored": features.max(0)}[layout]
    assert inputs.region_features.shape[1] == 3
    np.testing.assert_allclose(inputs.region_features[0, 0].float(), wanted, rtol=2e-3, atol=2e-3)
    assert inputs.region_features[0, 1:].float().tolist() == features[[1, 3]].tolist()


def test_a_system_with_an_element_for_the_whole_image_needs_no_such_region(tmp_path: Path) -> None:
    task, tokenizer = open_vcr(questions(tmp_path), VcrOptions(whole_region=True), None), words()
    with pytest.raises(ValueError, match=r"vcr\.whole_region: this vilbert has an element for the image as a whole"):
        batches_of("vilbert", task, made_store(), tokenizer, network_for("vilbert", tokenizer, 48))


@pytest.mark.parametrize("wide_high", [(1920, 1080), (1920, 800), (1920, 1038), (1280, 534), (1480, 640), (720, 720)])
def test_a_wide_photo_is_resized_as_r2c_does(wide_high: tuple[int, int]) -> None:
    """Into 768 x 384, each edge rounded (dataloaders/box_utils.py); the box of all of it ends behind its last pixel."""
    width, height = wide_high
    scale = min(768 / width, 384 / height)
    wanted = (round(height * scale), round(width * scale))
    conventions, pixels = CONVENTIONS["r2c"], np.zeros((height, width, 3), np.uint8)
    found = prepare_photo(pixels, np.array([[0, 0, width, height]]), CONFIGS["r2c-r50"], conventions)
    assert found.input_hw == wanted
    np.testing.assert_allclose(found.boxes, [[0, 0, wanted[1], wanted[0]]], atol=1e-4)


def test_torchvisions_file_is_r2cs_resnet(tmp_path: Path) -> None:
    """By its names; R2C halves at the first convolution of a stage, and its last stage not at all."""
    theirs = torchvision.models.resnet50(weights=None).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in theirs.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                each.copy_(torch.rand(each.shape, generator=generator) + 0.5)
    torch.save(theirs.state_dict(), tmp_path / "resnet50.pth")
    asked = EncoderRequest(detector="r2c-r50", weights=str(tmp_path / "resnet50.pth"))
    options = EncoderOptions(frozen_stages=(), mask_channels=32)
    encoder = task_encoder(asked, CONFIGS["r2c-r50"], options, None)
    assert encoder.conventions == CONVENTIONS["r2c"] and encoder.feature_dim == 2048 and encoder.mask_cells == 14
    layers: Any = theirs
    for stage in (layers.layer2, layers.layer3):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    layers.layer4[0].conv2.stride = layers.layer4[0].downsample[0].stride = (1, 1)
    stem = torch.nn.Sequential(theirs.conv1, theirs.bn1, theirs.relu, theirs.maxpool, theirs.layer1)
    pixels = torch.randn(1, 3, 64, 96, generator=generator)
    with torch.no_grad():
        wanted = layers.layer3(layers.layer2(stem(pixels)))
        torch.testing.assert_close(encoder.backbone(pixels), wanted, rtol=1e-4, atol=1e-4)
        last = encoder.roi_heads["res5"](wanted)
        torch.testing.assert_close(last, layers.layer4(wanted), rtol=1e-4, atol=1e-4)
    assert last.shape[2:] == wanted.shape[2:] == (4, 6)
