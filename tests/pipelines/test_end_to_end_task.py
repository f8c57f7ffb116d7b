"""Captions, photos and stored boxes to end-to-end batches: what is drawn, what is hidden, what stays as stored."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from end_to_end_examples import BLANK, BOXES, ENCODER, FEATURES, MASKED, RELEASE, WHOLE, awake, encoder, photos
from photo_store import CAPTIONS, HEIGHTS_WIDTHS, NUM_CLASSES, PhotoStore, draw_record, image_id, write_photo_store
from small_end_to_end import EndToEndTraining

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.preprocessing import blank_regions, input_size
from roibeam.extraction.region_encoder import collate_photos, prepare_photo
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.pretraining.end_to_end_encoder import LabelledStream, row_sizes
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENIZER = load_tokenizer("captions", CAPTIONS * 2)
EVERYTHING = PhotoRules(flip=True, short_edges=(32, 48, 56))  # drawn: mirrored or not, one of three sizes


def vlbert(**overrides: Any) -> VLBertForPreTraining:
    sizes: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab_size, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 40, "region_feature_size": FEATURES,
        "coordinate_embedding_size": 16, "num_region_labels": NUM_CLASSES + 1, "masked_appearance": "pixels",
    }  # fmt: skip
    return awake(VLBertForPreTraining(VLBertConfig(**(sizes | overrides))))


def make_task(
    made: PhotoStore, rules: PhotoRules = EVERYTHING, choices: EndToEndChoices = RELEASE, *, batch_size: int = 4,
    seed: int = 0, folder: Path | None = None, joint: EndToEndModel | None = None,
    labelled: LabelledStream | None = None, encoder_scale: float = 1.0, **model: Any,
) -> EndToEndTask:  # fmt: skip
    joint = joint or EndToEndModel(vlbert(**model), encoder(), choices)
    store = FeatureStore(made.path)
    rows = CaptionTable(list(store.ids()), made.rows())
    # Often masked, so that regions overlap masked ones.
    sampling = VLBertSampling(region_probability=0.4, word_probability=0.3, region_masked_share=0.8)
    sampler = VLBertSampler(sampling, TOKENIZER, joint.model.config, num_classes=NUM_CLASSES)
    photos = RecordPhotos(store, rows.captioned_ids(), None if folder is None else str(folder))
    side = TaskPhotos(photos, row_sizes(store, rows), rules, labelled, encoder_scale)
    data = DataConfig(batch_size=batch_size)
    return EndToEndTask(joint, Corpus(store, rows), sampler, side, data, pad_id=TOKENIZER.pad_id, seed=seed)


def area(batch: EndToEndBatch) -> int:
    """Pixels of each of its photos, padding too."""
    return batch.images.pixels.shape[2:].numel()


def first_batches(task: EndToEndTask, count: int, **where: int) -> list[EndToEndBatch]:
    start, ranks = where.pop("start", 0), {"rank": 0, "num_ranks": 1} | where
    return list(itertools.islice(task.batches(start, **ranks), count))


def rows_of(batches: list[EndToEndBatch]) -> list[tuple[Any, ...]]:
    """Each row of some batches without its padding."""
    rows = []
    for batch in batches:
        for row in range(batch.rows.batch_size):
            text, regions = batch.rows.text_mask[row], batch.rows.region_mask[row]
            boxes = batch.images.boxes[row, regions]
            height, width = (batch.images.pixels[row].any(dim=0).any(dim=axis).nonzero().max() + 1 for axis in (1, 0))
            rows.append((
                batch.rows.sample_ids[row], batch.rows.text_ids[row, text].tolist(), boxes.tolist(),
                batch.rows.region_boxes[row, regions].tolist(), batch.rows.row(row).region_targets.tolist(),
                batch.images.pixels[row, :, :height, :width].tolist(),
            ))  # fmt: skip
    return rows


def outputs(task: EndToEndTask, batch: EndToEndBatch) -> list[torch.Tensor]:
    with torch.no_grad():
        output = task.model.encode(batch.rows, batch.images)
        losses = task.losses(task.model, batch).losses
    return [output.text_states, output.region_states, *(term.total for term in losses.values())]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert all(torch.equal(left, right) for left, right in zip(ours, theirs, strict=True))


# --- the stream ---


def test_samples_do_not_depend_on_batch_size_or_processes(made: PhotoStore) -> None:
    alone = rows_of(first_batches(make_task(made, batch_size=1), 24))
    assert rows_of(first_batches(make_task(made, batch_size=6), 4)) == alone
    task = make_task(made, batch_size=3)
    ranks = [first_batches(task, 4, rank=rank, num_ranks=2) for rank in range(2)]
    assert rows_of([batch for pair in zip(*ranks, strict=True) for batch in pair]) == alone
    assert rows_of(first_batches(make_task(made, batch_size=1), 5, start=13)) == alone[13:18]
    assert rows_of(first_batches(make_task(made, batch_size=1, seed=1), 24)) != alone


def test_every_epoch_draws_mirrors_sizes_and_masks_anew(made: PhotoStore) -> None:
    drawn: dict[str, set[str]] = {}
    for row in rows_of(first_batches(make_task(made, batch_size=8), 6)):
        drawn.setdefault(row[0], set()).add(str(row[2:4]))
    assert drawn.keys() == {image_id(number) for number in range(8)}
    assert all(len(ways) >= 3 for ways in drawn.values())


def test_photos_of_one_shape_come_together(made: PhotoStore) -> None:
    def padding(task: EndToEndTask) -> float:
        batches = first_batches(task, 40)
        real = sum((each.images.whole_image_boxes[:, 2:] + 1).prod(dim=1).sum().item() for each in batches)
        return 1 - real / sum(each.images.pixels[:, 0].numel() for each in batches)

    alike, mixed = (make_task(made, PhotoRules(aspect_buckets=on), batch_size=2) for on in (True, False))
    assert padding(alike) < padding(mixed)


# --- mirroring ---


def test_mirrored_photos_have_mirrored_boxes_and_words(made: PhotoStore) -> None:
    plain, mirrored, unswapped = (
        rows_of(first_batches(make_task(made, PhotoRules(**rules), batch_size=8), 4))
        for rules in ({"flip": False}, {}, {"swap_left_right": False})
    )
    flipped = [ours[5] != theirs[5] for ours, theirs in zip(plain, mirrored, strict=True)]
    assert 8 < sum(flipped) < 24
    num_swapped = 0
    for is_flipped, before, after, same_words in zip(flipped, plain, mirrored, unswapped, strict=True):
        assert after[2:] == same_words[2:]
        # The masks of a caption follow from its number, whatever its words.
        pairs = zip(after[1], same_words[1], strict=True)
        pieces = [(TOKENIZER.piece(ours), TOKENIZER.piece(theirs)) for ours, theirs in pairs]
        sides = [pair for pair in pieces if set(pair) & {"left", "right"}]
        assert all(set(pair) == {"left", "right"} for pair in sides) if is_flipped else after[1] == same_words[1]
        num_swapped += len(sides) * is_flipped
        if is_flipped:
            width = input_size(HEIGHTS_WIDTHS[int(before[0][-1])], 48, 80, CONVENTIONS["vlbert-e2e"])[0][1]
            ours, theirs = torch.tensor(after[2]), torch.tensor(before[2])
            torch.testing.assert_close(ours[:, [0, 2]], width - 1 - theirs[:, [2, 0]], rtol=0, atol=1e-4)
            assert torch.equal(ours[:, [1, 3]], theirs[:, [1, 3]])
        else:
            assert after == before
    assert num_swapped > 4


# --- what is hidden ---


def test_what_stands_under_masked_boxes_reaches_nothing(made: PhotoStore) -> None:
    """Network-input pixels under masked boxes are changed and blanked again: mirrored, scaled, of mixed sizes."""
    task = make_task(made)
    whole = make_task(made, choices=EndToEndChoices("whole", whole_image="box"), masked_appearance="learned")
    hidden = leaked = 0
    for batch, shown in zip(first_batches(task, 4), first_batches(whole, 4), strict=True):
        assert torch.equal(batch.images.boxes, shown.images.boxes) and not shown.images.blanked_regions.any()
        assert len({tuple(box.tolist()) for box in batch.images.whole_image_boxes}) > 1
        changed = shown.images.pixels.clone()
        for row, masked in enumerate(batch.rows.masked_regions):
            for x1, y1, x2, y2 in batch.images.boxes[row, masked].int().tolist():
                assert not batch.images.pixels[row, :, y1 : y2 + 1, x1 : x2 + 1].any()
                changed[row, :, y1 : y2 + 1, x1 : x2 + 1] += torch.randn(3, y2 + 1 - y1, x2 + 1 - x1) * 60
                hidden += 1
        hidden_in = zip(changed, batch.images.boxes, batch.rows.masked_regions, strict=True)
        blanked = torch.stack([blank_regions(pixels, boxes[masked]) for pixels, boxes, masked in hidden_in])
        want = outputs(task, batch)
        assert_equal(outputs(task, EndToEndBatch(batch.rows, dataclasses.replace(batch.images, pixels=blanked))), want)
        seen = outputs(task, EndToEndBatch(batch.rows, dataclasses.replace(batch.images, pixels=changed)))
        leaked += not torch.equal(seen[0], want[0])
    assert hidden > 8 and leaked == 4  # the test would see a leak


@pytest.mark.parametrize("blank_pixels", ["before_resize", "after_resize"])
def test_what_photos_show_under_masked_boxes(made: PhotoStore, tmp_path: Path, blank_pixels: str) -> None:
    """Blanked before the resize, the photos may show anything there; after it, a trace stays beside the boxes."""
    choices = dataclasses.replace(RELEASE, blank_pixels=blank_pixels)
    for number in range(8):
        batches = first_batches(make_task(made, choices=choices, batch_size=1), 8)
        batch = next(each for each in batches if each.rows.sample_ids == (image_id(number),))
        if batch.rows.masked_regions.any():
            break
    place = next(at for at, each in enumerate(batches) if each is batch)
    pixels = cv2.imread(str(made.photo(image_id(number))))
    record = draw_record(number, FEATURES)
    boxes = record.boxes[np.argsort(-record.class_scores, kind="stable")][batch.rows.masked_regions[0].numpy()]
    changed = pixels.copy()
    for x1, y1, x2, y2 in boxes.astype(int).tolist():
        changed[y1 : y2 + 1, x1 : x2 + 1] = 255 - pixels[y1 : y2 + 1, x1 : x2 + 1]
    for other in range(8):
        cv2.imwrite(str(tmp_path / f"{image_id(other)}.png"), cv2.imread(str(made.photo(image_id(other)))))
    cv2.imwrite(str(tmp_path / f"{image_id(number)}.png"), changed)
    task = make_task(made, choices=choices, batch_size=1, folder=tmp_path)
    again = first_batches(task, 8)[place]
    same = torch.equal(again.images.pixels, batch.images.pixels)
    assert same == (blank_pixels == "before_resize")
    if same:
        assert_equal(outputs(task, again), outputs(task, batch))


def test_targets_are_those_of_the_store(made: PhotoStore) -> None:
    task = make_task(made)
    predicted = 0
    for batch in first_batches(task, 6):
        for row, name in enumerate(batch.rows.sample_ids):
            record = draw_record(int(name[-1]), FEATURES)
            order = np.argsort(-record.class_scores, kind="stable")
            stored = torch.from_numpy(record.class_distribution[order].astype(np.float32))
            chosen = batch.rows.region_target_mask[row]
            kept = int(batch.rows.region_mask[row].sum())
            assert torch.equal(batch.rows.row(row).region_targets, stored[:kept][chosen[:kept]])
            predicted += int(chosen.sum())
        assert batch.rows.region_features.shape[-1] == 0  # nothing stored that a model could look at instead
        assert batch.rows.whole_image_features is None
    assert predicted > 10


# --- photos that cannot be used ---


@pytest.fixture
def broken(tmp_path: Path) -> PhotoStore:
    made = write_photo_store(tmp_path, feature_dim=FEATURES)
    made.photo(image_id(3)).write_bytes(b"no photo")
    return made


def test_a_broken_photo_stops_the_run_with_its_name(broken: PhotoStore) -> None:
    words = r"photo-3\.png: not an image.*the photo of 'photo-3'; .*--skip-missing-photos"
    with pytest.raises(ValueError, match=words):
        first_batches(make_task(broken), 2)


def test_a_broken_photo_is_left_out_and_counted(broken: PhotoStore, made: PhotoStore) -> None:
    skipping = dataclasses.replace(EVERYTHING, skip_broken=True)
    task = make_task(broken, skipping)
    batches = first_batches(task, 4)
    names = [name for batch in batches for name in batch.rows.sample_ids]
    assert len(names) == 14 and image_id(3) not in names and task.skipped.keys() == {image_id(3)}
    assert rows_of(batches) == [row for row in rows_of(first_batches(make_task(made), 4)) if row[0] != image_id(3)]
    assert task.counts(batches[0])["masked_words"] == int((batches[0].rows.text_labels >= 0).sum())
    with pytest.raises(ValueError, match=r"none of the 1 photos of a batch can be used, the last because .*photo-3"):
        first_batches(make_task(broken, skipping, batch_size=1), 8)


# --- the largest batch ---


def test_the_worst_batch_is_as_large_as_any(made: PhotoStore) -> None:
    task = make_task(made, PhotoRules(flip=True, short_edges=(32, 48)), batch_size=3)
    worst = task.worst_batch()
    assert worst.batch.rows.batch_size == 3 and "3 photos of" in worst.what
    plain = make_task(made, PhotoRules(), batch_size=3)  # always of the larger edge
    assert area(worst.batch) == max(map(area, first_batches(plain, 60)))
    assert worst.batch.images.boxes.shape[1] == max(3 + number % 6 for number in range(8))
    _, _, *losses = outputs(task, worst.batch)
    assert all(torch.isfinite(loss) for loss in losses)
    width, height = (worst.batch.images.whole_image_boxes[0, 2:] + 1).tolist()
    assert (height, width) == tuple(worst.batch.images.pixels.shape[2:])


def test_no_batch_of_later_epochs_is_larger(made: PhotoStore) -> None:
    """Groups of photos alike are drawn anew in each epoch."""
    task = make_task(made, PhotoRules(flip=False, aspect_buckets=True), batch_size=2)
    largest = area(task.worst_batch().batch)
    sizes = [*map(area, first_batches(task, 60))]
    assert max(sizes) <= largest
    assert max(sizes[:4]) < max(sizes)  # the first epoch's largest is not the largest


@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_no_batch_is_larger_where_images_are_drawn_too(made: PhotoStore, tmp_path: Path, batch_size: int) -> None:
    """A negative of ImageBERT may be another photo, larger than the caption's own."""
    task = EndToEndTraining(made, tmp_path, "imagebert", batch_size, accumulation=1, steps=1, double=False).task()
    worst = task.worst_batch().batch
    regions = worst.images.boxes.shape[1]
    others = 0
    for batch in first_batches(task, 40):
        assert area(batch) <= area(worst) and batch.images.boxes.shape[1] <= regions
        others += int((batch.rows.match_labels == 0).sum())
    assert others > 5 and regions == max(3 + number % 6 for number in range(8))


def test_masks_of_one_epoch_do_not_make_the_worst_batch_smaller(made: PhotoStore, tmp_path: Path) -> None:
    """Its one draw of the photo with the most regions may show another photo."""
    masks = {"fixed_masks": True, "double": False}
    tasks = [EndToEndTraining(made, tmp_path, "imagebert", 1, 1, 1, seed=seed, **masks).task() for seed in range(16)]
    rehearsed = {task.worst_batch().batch.images.boxes.shape[1] for task in tasks}
    assert rehearsed == {max(3 + number % 6 for number in range(8))}


def test_rules_that_are_none(made: PhotoStore) -> None:
    with pytest.raises(ValueError, match="read_ahead must be at least 1, got 0"):
        PhotoRules(read_ahead=0)
    with pytest.raises(ValueError, match="short_edges must be pixels, 16 or more, got \\[8\\]"):
        PhotoRules(short_edges=(8,))
    with pytest.raises(ValueError, match=f"short_edges \\[500\\] are over the encoder's long_edge {ENCODER.long_edge}"):
        make_task(made, PhotoRules(short_edges=(500,)))


def test_sizes_of_rows_are_those_of_their_records(made: PhotoStore) -> None:
    with FeatureStore(made.path) as store:
        rows = CaptionTable(list(store.ids()), [(2, "a"), (0, "b"), (2, "c")])
        assert row_sizes(store, rows).tolist() == [[*HEIGHTS_WIDTHS[at], 3 + at % 6] for at in (2, 0, 2)]


# --- left and right in captions ---


@pytest.mark.parametrize(
    ("caption", "mirrored"),
    [
        ("a cup left of a box", "a cup right of a box"),
        ("The Left one, the RIGHT one", "The Right one, the LEFT one"),
        ("leftmost and rightward, left-hand side", "rightmost and leftward, right-hand side"),
        ("leftovers, bright rights", "leftovers, bright rights"),
        ("right/left", "left/right"),
        ("", ""),
    ],
)
def test_whole_words_change_places(caption, mirrored):
    assert swap_left_right(caption) == mirrored
    assert swap_left_right(mirrored) == caption


# --- photos and boxes as the two halves of a batch ---


def test_regions_and_pixels_are_those_of_prepared_photos():
    made = photo_inputs(photos(), BOXES, MASKED, encoder(), BLANK)
    given = zip(photos(), BOXES, MASKED, strict=True)
    convention = CONVENTIONS["vlbert-e2e"]
    want = collate_photos([prepare_photo(*each, ENCODER, convention, masked=masked) for *each, masked in given])
    assert torch.equal(made.images.pixels, want.pixels) and torch.equal(made.images.boxes, want.boxes)
    assert torch.equal(made.regions["region_boxes"], want.photo_boxes)
    assert torch.equal(made.regions["region_mask"], want.region_mask)
    assert made.regions["image_hw"].tolist() == [[48, 64], [60, 50]]
    assert made.regions["masked_regions"].tolist() == [[True, False, False, False], [False, True, False, False]]
    assert torch.equal(made.images.blanked_regions, made.regions["masked_regions"])


def test_whole_photos_are_not_blank_though_regions_are_masked():
    whole, blank = (photo_inputs(photos(), BOXES, MASKED, encoder(), choices) for choices in (WHOLE, BLANK))
    assert not whole.images.blanked_regions.any() and whole.regions["masked_regions"].sum() == 2
    assert not torch.equal(whole.images.pixels, blank.images.pixels)
    assert torch.equal(whole.images.boxes, blank.images.boxes)


def test_the_whole_image_is_a_box_of_its_own():
    """[0, 0, width - 1, height - 1] of the photo, scaled and clipped as any other box."""
    boxed, plain = (photo_inputs(photos(), BOXES, MASKED, encoder(), choices) for choices in (RELEASE, BLANK))
    # 64 x 48 stays, 50 x 60 shrinks to 48 x 57 and is clipped; 32 x 24 grows to 64 x 48, where the last pixel moves.
    assert boxed.images.whole_image_boxes.tolist() == [[0, 0, 63, 47], [0, 0, 47, 56]]
    boxes = np.array([[2, 3, 30, 24]], np.float32)
    small = photo_inputs([photos()[0][:24, :32]], [boxes], [MASKED[0][:1]], encoder(), RELEASE)
    assert small.images.whole_image_boxes.tolist() == [[0, 0, 62, 46]]
    assert plain.images.whole_image_boxes is None
    assert torch.equal(boxed.images.boxes, plain.images.boxes) and torch.equal(boxed.images.pixels, plain.images.pixels)
    assert all(torch.equal(boxed.regions[name], plain.regions[name]) for name in plain.regions)


def test_where_boxes_may_reach_the_edge_so_does_the_whole_image():
    other = encoder(conventions=dataclasses.replace(CONVENTIONS["vlbert-e2e"], box_clip="edge"))
    made = photo_inputs(photos(), BOXES, MASKED, other, RELEASE)
    torch.testing.assert_close(made.images.whole_image_boxes[0], torch.tensor([0.0, 0, 64, 48]))


def test_mirrored_photos_have_mirrored_boxes():
    plain, mirrored = (
        photo_inputs(photos(), BOXES, MASKED, encoder(), RELEASE, flips=flips) for flips in (None, [True, False])
    )
    ours, theirs = mirrored.regions["region_boxes"], plain.regions["region_boxes"]
    torch.testing.assert_close(ours[0, :, 0], 63 - theirs[0, :, 2], rtol=0, atol=1e-4)
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(mirrored.images.pixels[0, :, :48, :64], plain.images.pixels[0, :, :48, :64].flip(-1))


def test_masks_that_do_not_belong_to_the_boxes():
    with pytest.raises(ValueError, match=r"masked must be \(2,\) bool, one for each box; got \(4,\) bool"):
        photo_inputs(photos(), BOXES, [MASKED[0], MASKED[0]], encoder(), WHOLE)
    with pytest.raises(ValueError, match=r"got \(2,\) int64"):
        photo_inputs(photos(), BOXES, [MASKED[0], np.array([0, 1])], encoder(), WHOLE)
    with pytest.raises(ValueError, match="2 photos, 1 arrays of boxes, 2 of masked; give one of each"):
        photo_inputs(photos(), BOXES[:1], MASKED, encoder(), WHOLE)


@pytest.mark.parametrize(
    "boxes, words",
    [
        (BOXES[0] + 500, "box 0 of 4"),
        (BOXES[0] / 500, "all lie in 0..1"),
        (np.ones((2, 5), np.float32), r"must be \(R, 4\) numbers"),
    ],
)
def test_boxes_that_are_not_of_the_photo(boxes, words):
    """The encoder would clip them without a word."""
    with pytest.raises(ValueError, match=words):
        photo_inputs(photos(), [boxes, BOXES[1]], MASKED, encoder(), RELEASE)


def test_photos_without_regions():
    none = [np.zeros((0, 4), np.float32)] * 2
    made = photo_inputs(photos(), none, [np.zeros(0, bool)] * 2, encoder(), RELEASE)
    assert made.images.boxes.shape == (2, 0, 4) and made.regions["region_mask"].shape == (2, 0)
