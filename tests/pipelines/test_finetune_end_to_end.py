"""Tasks through the region encoder: a photo is convolved once for a question, gradients reach the detector's last
stage, a frozen encoder is a store, masks of outlines count, and a run that goes on is the run that was not ended."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import end_to_end_examples as examples
import numpy as np
import pytest
import torch
from harness.finetuning.prepared_photos import candidate_targets, prepare_candidates, prepare_vcr_photo
from photo_groups import PhotoFinetuning, batches, encoder_of, from_photos, groups, network, photos_of, write_outlines
from photo_store import HEIGHTS_WIDTHS, PhotoStore, image_id, write_photo_store
from rank_deviations import BOUNDS, largest_difference, log_in
from ranks import run_ranks, said
from safetensors.torch import load_file, save_model
from small_finetuning import judge_by_first_choice
from small_pretraining import settings
from task_groups import ASKED, LOSS

from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.datasets.vcr import read_vcr_metadata
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION
from roibeam.pipelines.finetuning.run.finetune_request import PhotoRequest
from roibeam.pipelines.finetuning.run.group_batches import PhotoSide, TaskBatch
from roibeam.pipelines.finetuning.run.group_images import GroupPhotos
from roibeam.pipelines.finetuning.run.group_task import predicted, scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores
from roibeam.pipelines.finetuning.run.network import TaskNetwork, read_network
from roibeam.pipelines.finetuning.run.task_data import check_annotated
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.task import AuxiliaryTargets, DownstreamTask, TaskSplit
from roibeam.pipelines.finetuning.tasks.referring import ReferringOptions
from roibeam.pipelines.finetuning.tasks.vcr_rules import region_masks
from roibeam.pipelines.training.run_folder.files import write_json

pytestmark = pytest.mark.usefixtures("one_thread")


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


def loss_of(trained: TaskNetwork, kind: str, batch: TaskBatch) -> torch.Tensor:
    scores = scores_of(trained.module, batch, ASKED[kind].form)
    real = real_scores(ASKED[kind], batch.inputs, batch.group_sizes)
    assert batch.targets is not None
    return loss_named(ASKED[kind].form, LOSS[kind]).term(scores, batch.targets, real).mean


def places_of(shown: np.ndarray, boxes: np.ndarray) -> list[int]:
    """Which of the boxes each one that is shown is."""
    return [int(np.flatnonzero((boxes == box).all(axis=1))[0]) for box in shown]


def test_a_photo_is_read_and_convolved_once_for_a_question(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four choices share it; its regions go through the last stage once too."""
    _, trained = network("vlbert", CHOICE, whole_image="box")
    read: list[str] = []
    once = RecordPhotos.read

    def noted(self: RecordPhotos, place: Any) -> np.ndarray:
        read.append(place.image_id)
        return once(self, place)

    monkeypatch.setattr(RecordPhotos, "read", noted)
    encoder, convolved = encoder_of(trained), list[int]()
    encoder.backbone.register_forward_pre_hook(lambda _, inputs: convolved.append(len(inputs[0])))
    encoder.roi_heads["res5"].register_forward_pre_hook(lambda _, inputs: convolved.append(len(inputs[0])))
    chosen = groups(CHOICE)[:3]
    batch = from_photos(store, trained, "vlbert", CHOICE).batch(chosen)
    scores = scores_of(trained.module, batch, CHOICE)
    assert scores.shape == (3, 4) and batch.inputs.batch_size == 12
    assert sorted(read) == [image_id(number) for number in range(3)]
    regions = sum(store[name].num_regions for name in read)
    assert convolved == [3, regions + 3]  # the whole image of each is one more


@pytest.mark.parametrize(("system", "whole_image"), [("vlbert", "box"), ("vilbert", "model"), ("visualbert", "model")])
@pytest.mark.parametrize("kind", [LABEL, CHOICE, REGION])
def test_gradients_reach_the_last_stage(store: FeatureStore, system: str, whole_image: str, kind: str) -> None:
    _, trained = network(system, kind, whole_image=whole_image)
    loss_of(trained, kind, from_photos(store, trained, system, kind).batch(groups(kind)[:2])).backward()
    encoder = encoder_of(trained)
    for stage in (encoder.roi_heads["res5"], encoder.backbone.res3):
        grads = [each.grad for each in stage.parameters() if each.requires_grad]
        assert grads and all(grad is not None and bool(grad.any()) for grad in grads)
    assert all(each.grad is None for each in encoder.backbone.stem.parameters())


def test_features_move_when_they_are_trained_and_frozen_stages_stay(made: PhotoStore, tmp_path: Path) -> None:
    run = PhotoFinetuning(made.path, tmp_path / "run", settings(steps=2, checkpoint_every=1), 4)
    run()
    _, start = network("vlbert", CHOICE, whole_image="box")
    with FeatureStore(made.path) as opened:
        batch = from_photos(opened, start, "vlbert", CHOICE, flip=False).batch(groups(CHOICE)[:1])
        inputs, images = batch.model_inputs  # type: ignore[misc]
        encoder = encoder_of(start)
        with torch.no_grad():
            before = encoder(images.pixels, images.boxes, inputs.region_mask)
        trained = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "model" / "model.safetensors")
        state = {name.removeprefix("region_encoder."): each for name, each in trained.items()}
        frozen = {name for name, each in encoder.named_parameters() if not each.requires_grad}
        assert frozen and all(torch.equal(state[name], encoder.state_dict()[name]) for name in frozen)
        encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
        with torch.no_grad():
            after = encoder(images.pixels, images.boxes, inputs.region_mask)
    assert float((after - before).abs().max()) > 1e-4


def test_the_encoder_s_rate_is_a_share_of_the_run_s(made: PhotoStore, tmp_path: Path) -> None:
    """The first step of Adam moves weights by the rate, whatever the gradient is."""
    moved, config = [], settings(warmup_steps=0)
    for scale in (1.0, 0.25):
        run = PhotoFinetuning(made.path, tmp_path / str(scale), config, 4, stop_at_step=1, encoder_scale=scale)
        with FeatureStore(made.path) as opened:
            start = run.task(opened).model.state_dict()
        run()
        (file,) = (tmp_path / str(scale) / "checkpoints").glob("*/model/model.safetensors")
        most = {"region_encoder": 0.0, "model": 0.0}
        for name, value in load_file(file).items():
            part = name.split(".")[0]
            most[part] = max(most.get(part, 0.0), float((value - start[name]).abs().max()))
        moved.append(most)
    whole, share = moved
    assert share["region_encoder"] == pytest.approx(whole["region_encoder"] / 4, rel=0.05)
    assert share["model"] == pytest.approx(whole["model"], rel=0.05) and whole["model"] > 0


@pytest.mark.parametrize("kind", [LABEL, CHOICE, REGION])
def test_a_frozen_encoder_is_a_store_of_its_features(store: FeatureStore, kind: str) -> None:
    """Scores of a photo alone, whose padding is none, against those of the features that the encoder makes of it."""
    stored, trained = network("vlbert", kind)
    encoder, one = encoder_of(trained), groups(kind)[:1]
    record = store[one[0].images[0]]
    batch = from_photos(store, trained, "vlbert", kind).batch(one)
    inputs, images = batch.model_inputs  # type: ignore[misc]
    order = places_of(batch.inputs.region_boxes[0].numpy(), record.boxes)
    with torch.no_grad():
        found = encoder(images.pixels, images.boxes, inputs.region_mask)[0]
        features = np.zeros((record.num_regions, examples.FEATURES), np.float32)
        features[order] = found.numpy()
        ours = scores_of(trained.module, batch, ASKED[kind].form)
        kept = {record.image_id: replace(record, features=features, image_feature=None)}
        theirs = scores_of(stored.module, batches(kept, stored, "vlbert", kind).batch(one), ASKED[kind].form)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [0, 8])
def test_masks_change_the_loss_when_they_change_places(store: FeatureStore, channels: int) -> None:
    """VCR's outlines cut regions out, or are told in channels (R2C): other boxes' masks are another input, and so are
    whole boxes."""
    _, trained = network("vlbert", CHOICE, whole_image="box", mask_channels=channels)

    def turned(photo: str, record: RegionRecord, side: int) -> np.ndarray:
        return np.roll(region_masks(photo, record, side), 1, axis=0)

    losses = []
    for cut in (region_masks, turned, None):
        made = from_photos(store, trained, "vlbert", CHOICE, outlines=cut)
        with torch.no_grad():
            losses.append(round(float(loss_of(trained, CHOICE, made.batch(groups(CHOICE)))), 5))
    assert len(set(losses)) == 3


def test_photos_of_vcr_are_those_of_its_conformance_cases(made: PhotoStore, store: FeatureStore) -> None:
    """Pixels, boxes and masks, plain and mirrored, padded to a fixed size: as `prepare_vcr_photo`, which the reference
    arrays hold."""
    _, trained = network("vlbert", CHOICE, whole_image="box")
    encoder = RegionEncoder(replace(examples.ENCODER, pooled_cells=14))
    choices = replace(examples.BLANK, whole_image="box")
    options = PhotoRequest(fixed_size=True)
    photos = GroupPhotos(store, [image_id(2)], None, encoder, choices, options, outlines=region_masks)
    record, photo = store[image_id(2)], made.photo(image_id(2))
    metadata = read_vcr_metadata(str(photo.with_suffix(".json")))
    pixels = decode_image(photo.read_bytes())
    for mirrored in (False, True):
        group = replace(groups(CHOICE)[2], mirrored=mirrored)
        (side,) = batches(store, trained, "vlbert", CHOICE, photos=photos).rows([group]).images
        assert isinstance(side, PhotoSide)
        cut = side.photo.result()
        order = places_of(side.boxes, record.boxes)
        given = (pixels, metadata, encoder.config, encoder.conventions)
        wanted = prepare_vcr_photo(*given, box_numbers=order, flip=mirrored)
        assert cut.outlines is not None and 0 < float(cut.outlines.mean()) < 0.9
        assert torch.equal(cut.photo.pixels, wanted.photo.pixels)
        assert torch.equal(cut.photo.boxes, wanted.photo.boxes)
        assert torch.equal(cut.outlines, wanted.masks[1:])


def test_a_mirrored_group_is_the_group_beside_a_mirrored_photo(store: FeatureStore) -> None:
    """Its targets are those of the photo as it is: an overlap has no left and right."""
    _, trained = network("vlbert", REGION)
    one = groups(REGION)[0]
    made = from_photos(store, trained, "vlbert", REGION)
    plain, mirrored = made.batch([one]), made.batch([replace(one, mirrored=True)])
    height, width = HEIGHTS_WIDTHS[0]
    assert plain.images is not None and mirrored.images is not None and plain.placed_boxes is not None
    assert mirrored.placed_boxes is not None and plain.targets is not None and mirrored.targets is not None
    assert torch.equal(plain.targets, mirrored.targets) and float(plain.targets.sum()) >= 1
    assert torch.equal(plain.inputs.region_boxes, mirrored.inputs.region_boxes)
    torch.testing.assert_close(mirrored.placed_boxes[..., 0], width - 1 - plain.placed_boxes[..., 2], rtol=0, atol=1e-3)
    input_width = int(plain.images.boxes[..., 2].max().ceil()) and round(width * 48 / min(height, width))
    assert torch.equal(plain.images.pixels[..., :input_width], mirrored.images.pixels[..., :input_width].flip(-1))


@pytest.mark.parametrize("mirrored", [False, True])
def test_overlaps_may_be_measured_in_the_input_of_the_network(store: FeatureStore, mirrored: bool) -> None:
    """VL-BERT's label: photo, boxes and the right one are resized and clipped alike, as its reference arrays have it.
    The pixel that sides count too much is less of an enlarged box, so that 0.502 of the photo is 0.498 there."""
    _, trained = network("vlbert", REGION)
    height, width = HEIGHTS_WIDTHS[2]
    given = np.array([[10, 10, 20, 15], [10, 10, 20, 22], [40, 8, width + 40, 28]], np.float32)
    first, second = (10.0, 10.0, 20.0, 20.95), (45.0, 8.0, width + 3.0, 28.0)
    facts = {"region_targets": {"inclusive_sides": True}}
    one = replace(groups(REGION)[2], boxes=(given,), mirrored=mirrored, facts=facts)
    asked = [replace(one, target=target) for target in (first, second)]
    found = []
    for in_input in (False, True):
        task = referring_task(measured_in_input=in_input)
        targets = from_photos(store, trained, "vlbert", REGION, task=task).batch(asked).targets
        assert targets is not None
        found.append(targets.tolist())
    encoder, options = encoder_of(trained), ReferringOptions(one_pixel_more=True, overlap_in="input")
    expected = []
    for target in (first, second):
        pixels, right = np.zeros((height, width, 3), np.uint8), np.array(target, np.float32)
        cut = prepare_candidates(pixels, given, right, encoder.config, encoder.conventions, flip=mirrored)
        expected.append(candidate_targets(cut.photo.boxes, cut.right, options, split="train").tolist())
    assert found[0] == [[1, 1, 0], [0, 0, 1]]
    assert found[1] == expected == [[0, 1, 0], [0, 0, 1]]


def referring_task(**fields: Any) -> DownstreamTask:
    return DownstreamTask(
        name="small", form=REGION, loss=LOSS[REGION], read=lambda split: TaskSplit(()), train="train", validation=None,
        judge=judge_by_first_choice, answers=lambda groups, said: iter(()), write=lambda path, entries: None,
        gives_boxes=True, **fields,
    )  # fmt: skip


def test_boxes_that_a_task_gives_need_no_store_of_them(store: FeatureStore) -> None:
    """They are cut to the photo, and predictions have them as they are; on stored features some are of a second one."""
    _, trained = network("vlbert", REGION)
    task = referring_task(joined=cast(Any, "of two stores"))
    check_annotated(task, None, from_photos=True)
    height, width = HEIGHTS_WIDTHS[0]
    given = np.array([[1, 2, 30, 20], [5, 5, width + 9, height + 9]], np.float32)
    one = replace(groups(REGION)[0], boxes=(given,), target=(1.0, 2.0, 30.0, 20.0))
    made = from_photos(store, trained, "vlbert", REGION, task=task)
    (told,) = predicted(trained.module, made, [one], REGION, 1)
    assert told.boxes is not None and told.scores.shape == (2,)
    assert told.boxes.tolist() == [[1, 2, 30, 20], [5, 5, width, height]]
    targets = made.batch([one]).targets
    assert targets is not None and targets.tolist() == [[1, 0]]


def test_a_blind_model_reads_no_photo(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    _, trained = network("vlbert", CHOICE, whole_image="box")
    made = from_photos(store, trained, "vlbert", CHOICE, blind=True)
    monkeypatch.setattr(RecordPhotos, "read", lambda *given: pytest.fail("a photo was read"))
    said_of = list(predicted(trained.module, made, groups(CHOICE), CHOICE, 2))
    assert len(said_of) == 4 and all(np.isfinite(each.scores).all() for each in said_of)
    first = groups(CHOICE)[0]
    without = from_photos(store, trained, "vlbert", CHOICE).without_regions(first.images[0])  # of the same size
    (unseen,) = predicted(trained.module, without, [replace(first, images=("nowhere",), swapped=True)], CHOICE, 2)
    np.testing.assert_allclose(unseen.scores, said_of[0].scores, atol=1e-6)


def test_batches_of_threads_and_processes_are_alike(made: PhotoStore, tmp_path: Path) -> None:
    """Photos are mirrored by seed, epoch and group; some are."""
    streams = []
    with FeatureStore(made.path) as opened:
        for workers in (0, 2):
            task = PhotoFinetuning(made.path, tmp_path, settings(steps=4), 2, workers=workers).task(opened)
            stream = task.batches(0, rank=0, num_ranks=1)
            streams.append([next(stream) for _ in range(4)])
    flipped = 0
    for one, other in zip(*streams, strict=True):
        assert one.ids == other.ids and one.images is not None and other.images is not None
        assert torch.equal(one.images.pixels, other.images.pixels) and one.placed_boxes is not None
        flipped += not torch.allclose(one.placed_boxes, one.inputs.region_boxes, atol=1.5)
    assert flipped > 0


def test_a_run_that_goes_on_is_the_run_that_was_not_ended(made: PhotoStore, tmp_path: Path) -> None:
    """Bit for bit, with dropout and mirrored photos: encoder, optimizer, random state."""
    config = settings(steps=4, checkpoint_every=2)

    def run(name: str, **how: Any) -> dict[str, torch.Tensor]:
        PhotoFinetuning(made.path, tmp_path / name, config, 2, dropout=0.1, **how)()
        newest = sorted((tmp_path / name / "checkpoints").iterdir())[-1]
        return load_file(newest / "model" / "model.safetensors")

    whole = run("whole")
    run("ended", stop_at_step=2)
    ended = run("ended")
    assert whole.keys() == ended.keys() and all(torch.equal(whole[name], ended[name]) for name in whole)
    assert any(name.startswith("region_encoder.roi_heads") for name in whole)


@pytest.mark.slow
def test_two_processes_train_as_one(made: PhotoStore, tmp_path: Path) -> None:
    """Photos padded to one size: what a batch pads is otherwise part of its features."""
    logs = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        work = PhotoFinetuning(
            made.path, folder, settings(steps=3, learning_rate=1e-5), 4 // ranks, double=True,
            padding_multiple=examples.ENCODER.long_edge,
        )  # fmt: skip
        assert run_ranks(work, ranks, tmp_path / f"said-{ranks}") == [0] * ranks, said(tmp_path / f"said-{ranks}")
        logs.append(log_in(folder))
    assert largest_difference(*logs) < BOUNDS["float64"]


@pytest.mark.parametrize("channels", [0, 8])
def test_a_network_and_its_encoder_are_read_as_written(store: FeatureStore, tmp_path: Path, channels: int) -> None:
    _, trained = network("vlbert", CHOICE, whole_image="box", mask_channels=channels)
    save_model(trained.module, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    write_json(tmp_path / "config.json", trained.described)
    found = read_network(tmp_path, SYSTEMS["vlbert"], ASKED[CHOICE])
    assert json.dumps(found.described) == json.dumps(json.loads((tmp_path / "config.json").read_text()))
    assert found.encoder_config.to_diff_dict().keys() >= trained.encoder_config.to_diff_dict().keys()
    made = (from_photos(store, each, "vlbert", CHOICE).batch(groups(CHOICE)) for each in (trained, found))
    scores = [scores_of(each.module, batch, CHOICE) for each, batch in zip((trained, found), made, strict=True)]
    assert torch.equal(*scores)


def test_photos_that_are_missing_or_of_others_are_told(made: PhotoStore, store: FeatureStore, tmp_path: Path) -> None:
    _, trained = network("vlbert", CHOICE)
    with pytest.raises(ValueError, match=r"8 images of 8 without a photo, such as 'photo-0'.*--photos"):
        photos_of(PhotoStore(made.path, tmp_path), store, trained, PhotoRequest(), None)
    for number in range(8):
        (tmp_path / f"{image_id(number)}.png").write_bytes(made.photo(image_id((number + 1) % 8)).read_bytes())
    photos = photos_of(PhotoStore(made.path, tmp_path), store, trained, PhotoRequest(), None)
    other = str(made.photo(image_id(5)))
    with pytest.raises(ValueError, match=r"50 x 60 pixels.*its boxes would cut out other things"):
        batches(store, trained, "vlbert", CHOICE, photos=photos).check(groups(CHOICE)[0])
    others = from_photos(store, trained, "vlbert", CHOICE, outlines=lambda _, *more: region_masks(other, *more))
    with pytest.raises(ValueError, match=r"no region at .* boxes of the task"):
        others.batch(groups(CHOICE)[:1])


def test_two_images_in_one_row_are_refused(store: FeatureStore) -> None:
    _, trained = network("visualbert", "pair")
    with pytest.raises(ValueError, match="visualbert reads 2 images in one row"):
        from_photos(store, trained, "visualbert", "pair")


def test_photos_of_one_shape_share_batches(store: FeatureStore) -> None:
    _, trained = network("vlbert", CHOICE)
    photos = photos_of(None, store, trained, PhotoRequest(aspect_buckets=True), None)
    assert photos.likeness([image_id(0), image_id(2)]) == pytest.approx([64 / 48, 72 / 40])
    assert photos_of(None, store, trained, PhotoRequest(), None).likeness([image_id(0)]) is None


def test_the_largest_batch_is_as_large_as_any(made: PhotoStore, tmp_path: Path) -> None:
    """High photos and wide ones of 48 x 79 pixels at most; of the groups' images one has six regions."""
    with FeatureStore(made.path) as opened:
        task = PhotoFinetuning(made.path, tmp_path, settings(steps=4), 3).task(opened)
        worst = task.worst_batch()
        stream = task.batches(0, rank=0, num_ranks=1)
        others = [next(stream) for _ in range(4)]
    images, inputs = worst.batch.images, worst.batch.inputs
    assert worst.what == "3 photos of 79 x 79 pixels with 6 regions each"
    assert not images.pixels.any() and inputs.batch_size == 12
    for batch in others:
        assert batch.images is not None
        sizes = zip(images.pixels.shape, batch.images.pixels.shape, strict=True)
        assert all(most >= each for most, each in sizes)
        assert inputs.region_mask.shape[1] >= batch.inputs.region_mask.shape[1]
    assert task.losses(task.model, worst.batch).losses["task"].total.isfinite()


@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_classes_of_regions_are_learned_beside(made: PhotoStore, tmp_path: Path, hidden: float) -> None:
    """As VL-BERT's release, of all regions and the whole image, or of hidden ones, which are blank in the photo."""
    beside = AuxiliaryTargets(("none", "cup", "dog"), lambda group: np.array([1, 2, 1]), hidden_regions=hidden)
    with FeatureStore(made.path) as opened:
        task = PhotoFinetuning(made.path, tmp_path, settings(steps=4), 4, beside=beside).task(opened)
        batch, worst = next(task.batches(0, rank=0, num_ranks=1)), task.worst_batch().batch
    assert set(task.losses(task.model, worst).losses) == {"task", "region_classes"}  # tried before the first step
    output = task.losses(task.model, batch)
    assert {name: int(term.count) for name, term in output.losses.items()} == dict(task.counts(batch))
    sum(term.mean for term in output.losses.values()).backward()
    joint: Any = task.model
    assert all(bool(each.grad.any()) for each in joint.model.region_class_head.parameters())
    assert bool(joint.region_encoder.roi_heads["res5"][-1].conv3.weight.grad.any())
    images, masked = batch.images, batch.inputs.masked_regions
    assert images is not None and torch.equal(images.blanked_regions, masked) and bool(masked.any()) == (hidden > 0)
    counted = int(task.counts(batch)["region_classes"])
    assert counted == (4 * int(masked.sum()) if hidden else 16 * 3 + 16)  # every row asks; three of each are known
