"""A detector trained beside a model: its losses are the detector's own, its gradients reach the shared encoder."""

import copy
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from end_to_end_examples import RELEASE as CHOICES
from labelled_world import ATTRIBUTES, CLASSES, COMPUTES, DETECTOR, FEW, labelled_batches, write_labelled
from photo_store import PhotoStore
from test_end_to_end_task import make_task, vlbert

from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.extraction.training.batch_losses import DetectorHeads, DetectorTraining, load_heads, new_heads
from roibeam.extraction.weights.loading import build_detector
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.pretraining.end_to_end_encoder import LabelledStream
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask
from roibeam.pipelines.pretraining.requested_settings import LabelledRules
from roibeam.pipelines.training.detector.settings import DetectorPhotoRules
from roibeam.pipelines.training.detector.task import DetectorTask
from roibeam.pipelines.training.model_files.encoder_settings import LossWeights
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    DETECTION_PREFIX,
    JointDetector,
    load_joint,
    save_joint,
)
from roibeam.pipelines.training.train_step import blame

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS = LossWeights(objectness=0.5, proposal_boxes=2.0, classes=1.5, region_boxes=0.25, attributes=3.0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> LabelledPhotos:
    return write_labelled(tmp_path_factory.mktemp("labels") / "photos")


def encoder(**options: Any) -> RegionEncoder:
    made = RegionEncoder(DETECTOR, COMPUTES, **options)
    load_encoder_weights("random:1", made)
    return made


def joint_detector(*, frozen_stages: tuple[int, ...] = (1, 2), **options: Any) -> JointDetector:
    names = {"class_names": CLASSES, "attribute_names": ATTRIBUTES}
    heads = load_heads("random:1", DETECTOR, COMPUTES)
    settings: dict[str, Any] = {"sampling": FEW, "weights": WEIGHTS} | names | options
    return JointDetector(vlbert(), encoder(frozen_stages=frozen_stages), CHOICES, heads, **settings)


def task_on(
    made: PhotoStore, photos: LabelledPhotos, *, per_caption: float = 0.5, batch_size: int = 4, **options: Any
) -> EndToEndTask:
    """With dropout off, so that two passes are alike."""
    stream = LabelledStream(labelled_batches(photos), per_caption)
    return make_task(made, batch_size=batch_size, joint=joint_detector(**options).eval(), labelled=stream)


def taken(task: EndToEndTask, count: int, *, start: int = 0, rank: int = 0, num_ranks: int = 1) -> list[EndToEndBatch]:
    return list(itertools.islice(task.batches(start, rank=rank, num_ranks=num_ranks), count))


def gradients(joint: torch.nn.Module, output: PreTrainingOutput) -> dict[str, torch.Tensor]:
    joint.zero_grad()
    torch.stack([term.mean for term in output.losses.values()]).sum().backward()
    return {name: each.grad.clone() for name, each in joint.named_parameters() if each.grad is not None}


# --- losses ---


def test_losses_are_those_of_model_and_detector_apart(made: PhotoStore, photos: LabelledPhotos) -> None:
    """Against `EndToEndModel` and `DetectorTraining` of their own, each with copies of the same weights."""
    task = task_on(made, photos)
    batch = taken(task, 1)[0]
    assert batch.labelled is not None and len(batch.labelled.photos) == 2
    joint = task.model
    together = task.losses(joint, batch)
    assert set(together.losses) == set(task.counts(batch))
    plain = EndToEndModel(copy.deepcopy(joint.model), encoder(), CHOICES).eval()
    detector = build_detector(DETECTOR, weights="random:1", conventions=COMPUTES)
    alone = DetectorTraining(detector, sampling=FEW, frozen_stages=(1, 2))(batch.labelled.photos)
    for name, term in plain(batch.rows, batch.images).losses.items():
        assert torch.equal(term.mean, together.losses[name].mean), name
    for name, values in alone.losses.items():
        want = getattr(WEIGHTS, name) * values.mean()
        torch.testing.assert_close(together.losses[DETECTION_PREFIX + name].mean, want, rtol=1e-6, atol=0)
        assert want.item() > 0, name
    labelled = {DETECTION_PREFIX + name for name in alone.losses}
    assert labelled | set(plain(batch.rows, batch.images).losses) == set(together.losses)
    told = {name for name in together.metrics if name.startswith(DETECTION_PREFIX)}
    assert told == {DETECTION_PREFIX + name for name in alone.metrics}


def test_gradients_of_both_add_up_in_the_encoder(made: PhotoStore, photos: LabelledPhotos) -> None:
    task = task_on(made, photos)
    batch, joint = taken(task, 1)[0], task.model
    both = gradients(joint, task.losses(joint, batch))
    words = gradients(joint, task.losses(joint, dataclasses.replace(batch, labelled=None)))
    boxes = gradients(joint, task.losses(joint, batch.labelled))
    shared = [name for name in both if name.startswith("region_encoder.")]
    assert shared and all(name in words and name in boxes for name in shared)
    for name in shared:
        assert words[name].any() and boxes[name].any(), name
        torch.testing.assert_close(both[name], words[name] + boxes[name], rtol=1e-4, atol=1e-6)
    of_heads = [name for name in both if name.startswith("detection.")]
    assert len(of_heads) == len(list(joint.detection.parameters()))
    assert not any(name in words for name in of_heads) and all(both[name].any() for name in of_heads)


@pytest.mark.parametrize("stages", [(1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_frozen_stages_get_no_gradient(made: PhotoStore, photos: LabelledPhotos, stages: tuple[int, ...]) -> None:
    task = task_on(made, photos, frozen_stages=stages)
    batch, joint = taken(task, 1)[0], task.model
    moved = gradients(joint, task.losses(joint, batch.labelled))
    parts = {1: "backbone.stem", 2: "backbone.res2", 3: "backbone.res3", 4: "backbone.res4", 5: "roi_heads.res5"}
    for stage, part in parts.items():
        assert any(name.startswith(f"region_encoder.{part}") for name in moved) == (stage not in stages), part
    assert any(name.startswith("detection.proposal_generator") for name in moved)
    assert all(torch.isfinite(each).all() for each in moved.values())


def test_one_part_may_be_left_out_and_others_refused() -> None:
    with pytest.raises(ValueError, match=r"the weight classes is -1\.0; it must not be negative"):
        LossWeights(classes=-1.0)
    with pytest.raises(ValueError, match=r"photos_per_caption must be in 0\.001\.\.1000, got 0"):
        LabelledRules(photos_per_caption=0)
    with pytest.raises(ValueError, match="heads is 'old'; it must be one of 'weights', 'new'"):
        LabelledRules(heads="old")
    with pytest.raises(ValueError, match=r"short_edges must be pixels, 16 or more, got \[3\]"):
        LabelledRules(short_edges=(3,))


def test_heads_decay_as_in_a_detector_s_training(made: PhotoStore, photos: LabelledPhotos) -> None:
    task = task_on(made, photos)
    rest, weights, biases = (group["params"] for group in task.parameter_groups())
    trained = {id(each) for each in task.model.parameters() if each.requires_grad}
    assert {id(each) for each in (*rest, *weights, *biases)} == trained
    assert {id(each) for each in (*weights, *biases)} == {id(each) for each in task.model.detection.parameters()}
    assert task.parameter_groups()[2]["weight_decay"] == 0.0 and all(each.ndim == 1 for each in biases)


def test_the_encoder_s_rate_is_a_share_and_the_heads_have_their_own(made: PhotoStore, photos: LabelledPhotos) -> None:
    stream = LabelledStream(labelled_batches(photos), 0.5)
    task = make_task(made, batch_size=4, joint=joint_detector(), labelled=stream, encoder_scale=0.25)
    scales: dict[str, set[float]] = {"model": set(), "region_encoder": set(), "detection": set()}
    names = {id(each): name.split(".")[0] for name, each in task.model.named_parameters()}
    for group in task.parameter_groups():
        for each in group["params"]:
            scales[names[id(each)]].add(group.get("learning_rate_scale", 1.0))
    assert scales == {"model": {1.0}, "region_encoder": {0.25}, "detection": {1.0}}


# --- which photos come ---


def labelled_rows(batches: list[EndToEndBatch]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        if batch.labelled is not None:
            found = batch.labelled.photos
            for index, (height, width) in enumerate(found.input_hw):
                pixels = found.pixels[index, :, :height, :width]
                name, seed = batch.labelled.image_ids[index], found.seeds[index]
                rows.append((name, seed, found.objects[index].boxes.tolist(), pixels.tolist()))
    return rows


@pytest.mark.parametrize("per_caption", [0.5, 0.3, 1.5])
def test_labelled_photos_do_not_depend_on_batch_size_or_processes(
    made: PhotoStore, photos: LabelledPhotos, per_caption: float
) -> None:
    alone = labelled_rows(taken(task_on(made, photos, per_caption=per_caption, batch_size=1), 24))
    assert len(alone) == int(24 * per_caption)
    assert labelled_rows(taken(task_on(made, photos, per_caption=per_caption, batch_size=6), 4)) == alone
    task = task_on(made, photos, per_caption=per_caption, batch_size=3)
    ranks = [taken(task, 4, rank=rank, num_ranks=2) for rank in range(2)]
    assert labelled_rows([batch for pair in zip(*ranks, strict=True) for batch in pair]) == alone
    later = labelled_rows(taken(task, 2, start=12))
    assert later == alone[int(12 * per_caption) : int(18 * per_caption)]


def test_they_are_those_of_a_detector_s_training(photos: LabelledPhotos) -> None:
    detector = build_detector(DETECTOR, weights="random:1", conventions=COMPUTES)
    rules = DetectorPhotoRules(batch_size=2, short_edges=(32, 48))
    batch = next(DetectorTask(DetectorTraining(detector), photos, rules, seed=0).batches(0, rank=0, num_ranks=1))
    stream = LabelledStream(labelled_batches(photos), 1.0)
    assert len(next(stream.beside(0, batch_size=2, rank=0, num_ranks=1))) == 2 == stream.most(2)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        places = next(stream.beside(0, batch_size=2, rank=0, num_ranks=1))
        ours = stream.photos.collate([stream.photos.coming(pool, *each) for each in places])
    assert ours.image_ids == batch.image_ids and ours.photos.seeds == batch.photos.seeds
    assert torch.equal(ours.photos.pixels, batch.photos.pixels)


def test_the_worst_batch_has_labelled_photos_too(made: PhotoStore, photos: LabelledPhotos) -> None:
    task = task_on(made, photos, batch_size=3)
    worst = task.worst_batch()
    assert "and 2 labelled ones of 79 x 44" in worst.what and "a smaller labelled.photos_per" in worst.remedies
    found = task.losses(task.model, worst.batch)
    assert set(found.losses) == set(task.counts(worst.batch)) and DETECTION_PREFIX + "classes" in found.losses
    assert all(torch.isfinite(term.total) for term in found.losses.values())


# --- what is told of a bad photo ---


def test_a_labelled_photo_that_spoils_a_step_is_named_alone(made: PhotoStore, photos: LabelledPhotos) -> None:
    task = task_on(made, photos)
    batch = taken(task, 1)[0]
    assert batch.labelled is not None
    batch.labelled.photos.pixels[1, :, 5, 5] = float("nan")
    said = blame(task, [batch], Accelerator(cpu=True))
    name = batch.labelled.image_ids[1]
    assert said.startswith(f"not finite by itself: labelled photo {name} (of 6 samples in the step)")


def test_a_broken_labelled_photo_is_named(made: PhotoStore, tmp_path: Path) -> None:
    photos = write_labelled(tmp_path / "photos")
    (tmp_path / "photos" / "labelled-2.png").write_bytes(b"no photo")
    with pytest.raises(ValueError, match=r"labelled-2\.png: .*put a whole copy of it there"):
        taken(task_on(made, photos, per_caption=2.0), 2)


# --- checkpoints ---


def test_a_checkpoint_brings_the_whole_detector_back(made: PhotoStore, photos: LabelledPhotos, tmp_path: Path) -> None:
    task = task_on(made, photos)
    joint = task.model
    batch = taken(task, 1)[0]
    again = load_joint(save_joint(joint, tmp_path / "joint"))
    assert isinstance(again, JointDetector) and not again.training
    assert (again.class_names, again.attribute_names) == (CLASSES, ATTRIBUTES)
    ours, theirs = joint.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = JointDetector(
        again.model, again.region_encoder, CHOICES, again.detection,
        class_names=CLASSES, attribute_names=ATTRIBUTES, sampling=FEW, weights=WEIGHTS,
    ).eval()  # fmt: skip
    for name, term in task.losses(joint, batch).losses.items():
        assert torch.equal(term.total, task.losses(again, batch).losses[name].total), name
    # Every number of a whole detector stands in it, under the names of a detector's file.
    prefixes = ("region_encoder.", "detectio")
    parts = [{n.removeprefix(p): t for n, t in ours.items() if n.startswith(p)} for p in prefixes]
    whole = joint.detection.detector(joint.region_encoder).state_dict()
    assert whole.keys() == {*parts[0], *(name.removeprefix("n.") for name in parts[1])}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda found: found["detection"]["class_names"].pop(), "2 class and 2 attribute names for a detector of 3"),
        (lambda found: found["detection"].pop("attribute_names"), "'attribute_names' must be a list of names"),
        (lambda found: found.pop("detection"), "parameter detection.proposal_generator.*: the file has"),
    ],
)
def test_a_checkpoint_that_does_not_fit_itself(tmp_path: Path, damage: Any, words: str) -> None:
    path = save_joint(joint_detector(), tmp_path / "joint") / "config.json"
    found = json.loads(path.read_text())
    damage(found)
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=words):
        load_joint(tmp_path / "joint")


def test_anchors_that_no_conventions_compute_are_refused(tmp_path: Path) -> None:
    joint = joint_detector()
    joint.detection.proposal_generator.cell_anchors += 1
    with pytest.raises(ValueError, match=r"has anchors of its own.*choose the conventions of that file"):
        save_joint(joint, tmp_path / "joint")


def test_heads_and_encoder_are_the_detector_of_the_same_file(photos: LabelledPhotos) -> None:
    """Bit for bit what the whole detector says of a photo."""
    from roibeam.pipelines.data.labelled_photos import read_photo

    whole = build_detector(DETECTOR, weights="random:1", conventions=COMPUTES)
    ours = load_heads("random:1", DETECTOR, COMPUTES).detector(encoder())
    photo = read_photo(photos.images[0], photos.root, "applied")
    left, right = (each.head_outputs(photo) for each in (whole, ours))
    assert torch.equal(left.proposals.boxes, right.proposals.boxes)
    assert torch.equal(left.regions.class_logits, right.regions.class_logits)
    assert torch.equal(left.regions.attribute_logits, right.regions.attribute_logits)


def test_new_heads_follow_from_the_seed() -> None:
    first, again, other = (new_heads(DETECTOR, COMPUTES, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    scores = "roi_heads.box_predictor.cls_score.weight"
    assert not torch.equal(first[scores], other[scores])
    assert set(first) == set(DetectorHeads(DETECTOR, COMPUTES).state_dict())
