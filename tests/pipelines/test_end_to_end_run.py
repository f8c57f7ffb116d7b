"""Pre-training runs through the region encoder: the same bits after a resume, and after the largest batch had come."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from captioned_records import pretrain_with
from end_to_end_examples import ENCODER, FEATURES
from labelled_world import write_labelled
from photo_store import CAPTIONS, PhotoStore, image_id, write_photo_store
from rank_deviations import BOUNDS, InTurn, largest_difference, log_in
from ranks import run_ranks, said
from safetensors.torch import load_file
from small_end_to_end import CASES, EndToEndTraining
from torch import nn
from toy_training import assert_equal_checkpoints, log_of
from training_fail_points import BACKWARD, TENSORS, Killed

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.captioned_store import CaptionedStore
from roibeam.pipelines.pretraining.end_to_end_encoder import EndToEnd
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions, choose_encoder
from roibeam.pipelines.training.model_files.joint_checkpoint import load_joint
from roibeam.pipelines.training.run_folder.train_log import TrainLog
from roibeam.pipelines.training.task import WorstBatch, rehearse
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

CHOICES, PHOTOS = EndToEndChoices(whole_image="box"), PhotoRules(short_edges=(32, 48))
THROUGH_ENCODER = EndToEnd(ENCODER, CONVENTIONS["vlbert-e2e"], "random:1", choices=CHOICES, photos=PHOTOS)
TRAIN = TrainConfig(steps=4, learning_rate=1e-3, device="cpu", checkpoint_every=2)


def run(
    made: PhotoStore, folder: Path, *, end_to_end: EndToEnd = THROUGH_ENCODER, train: TrainConfig = TRAIN, **rest: Any
) -> PretrainResult:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    settings = {"train_config": train, "data": DataConfig(batch_size=4)}
    settings |= {"model_overrides": sizes | {"coordinate_embedding_size": 16}} | rest
    with FeatureStore(made.path) as store:
        captions = [Caption(text, image_id(number)) for number, text in enumerate(CAPTIONS)]
        return pretrain_with([CaptionedStore(store, captions)], folder, end_to_end=end_to_end, **settings)


def state(done: PretrainResult) -> dict[str, torch.Tensor]:
    """Weights and optimizer of the last checkpoint."""
    files = ("model/model.safetensors", "optimizer.safetensors")
    return {f"{file} {name}": t for file in files for name, t in load_file(done.training.checkpoint / file).items()}


def log(done: PretrainResult) -> list[dict[str, Any]]:
    lines = (done.run_dir / "log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def assert_same(ours: PretrainResult, theirs: PretrainResult) -> None:
    left, right = state(ours), state(theirs)
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert log(ours) == log(theirs) and ours.evaluation == theirs.evaluation


@pytest.fixture(scope="module")
def whole(made: PhotoStore, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    torch.set_num_threads(1)
    return run(made, tmp_path_factory.mktemp("runs") / "whole")


def test_a_resumed_run_goes_on_in_the_same_bits(made: PhotoStore, whole: PretrainResult, tmp_path: Path) -> None:
    run(made, tmp_path / "parts", stop_at_step=1)
    run(made, tmp_path / "parts", stop_at_step=3, resume=True)
    assert_same(run(made, tmp_path / "parts", resume=True), whole)
    assert ", trained end to end on " in (whole.run_dir / "report.html").read_text()


def test_the_largest_batch_comes_first_and_leaves_no_trace(
    made: PhotoStore, whole: PretrainResult, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    written = TrainLog.step

    def told_too(log: TrainLog, position: Any, values: Any) -> None:
        logging.getLogger("roibeam").info("step %d", position["step"])
        written(log, position, values)

    with caplog.at_level(logging.INFO), monkeypatch.context() as patched:
        patched.setattr(TrainLog, "step", told_too)
        run(made, tmp_path / "twice", train=dataclasses.replace(TRAIN, accumulation=2), stop_at_step=1)
    told = [record.getMessage() for record in caplog.records]
    (first,) = [at for at, line in enumerate(told) if line.startswith("the largest batch, 4 photos of ")]
    assert first < told.index("step 1")
    monkeypatch.setattr("roibeam.pipelines.training.loop.rehearse", lambda *_, **__: None)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        without = run(made, tmp_path / "without")
    assert not any("largest batch" in record.getMessage() for record in caplog.records)
    assert_same(without, whole)  # dropout is on: a random state that moved would show


def test_the_run_s_checkpoint_is_a_joint_one(made: PhotoStore, whole: PretrainResult) -> None:
    joint = load_joint(whole.training.checkpoint / "model")
    saved = load_file(whole.training.checkpoint / "model" / "model.safetensors")
    ours = joint.state_dict()
    assert ours.keys() == saved.keys() and all(torch.equal(ours[name], saved[name]) for name in saved)
    assert joint.choices == THROUGH_ENCODER.choices and joint.region_encoder.frozen_stages == (1, 2)
    assert joint.model.config.masked_appearance == "pixels"


def test_trained_stages_move_and_frozen_ones_stay(made: PhotoStore, whole: PretrainResult) -> None:
    start = THROUGH_ENCODER.build_encoder().state_dict()
    moved = {
        name.removeprefix("region_encoder."): not torch.equal(tensor, start[name.removeprefix("region_encoder.")])
        for name, tensor in load_joint(whole.training.checkpoint / "model").state_dict().items()
        if name.startswith("region_encoder.")
    }
    assert len(moved) == len(start)
    for name, has_moved in moved.items():
        fixed = ".norm." in name or name.startswith(("backbone.stem", "backbone.res2"))
        assert has_moved != fixed, name


def test_computing_again_on_resume_changes_no_bit(made: PhotoStore, whole: PretrainResult, tmp_path: Path) -> None:
    again = dataclasses.replace(THROUGH_ENCODER, encoder=EncoderOptions(recompute=True))
    run(made, tmp_path / "run", stop_at_step=2)
    layers_too = dataclasses.replace(TRAIN, activation_checkpointing=True)
    assert_same(run(made, tmp_path / "run", end_to_end=again, train=layers_too, resume=True), whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": EncoderOptions(region_chunk=3)}, "task.region_chunk: None -> 3"),
        ({"photos": PhotoRules(short_edges=(32, 48), flip=False)}, "task.photos.flip: True -> False"),
        ({"choices": EndToEndChoices(whole_image="box", blank_pixels="before_resize")}, "end_to_end.blank_pixels"),
        ({"config": dataclasses.replace(ENCODER, short_edge=40)}, "region_encoder.detector.short_edge: 48 -> 40"),
        ({"encoder": EncoderOptions(frozen_stages=(1,))}, "frozen_stages"),
        ({"encoder": EncoderOptions(learning_rate_scale=0.5)}, "task.encoder_learning_rate_scale: .* -> 0.5"),
    ],
)
def test_no_other_run_is_resumed(made: PhotoStore, whole: PretrainResult, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(made, whole.run_dir, end_to_end=dataclasses.replace(THROUGH_ENCODER, **changes), resume=True)


def test_a_release_s_rates_leave_no_share_to_the_encoder(made: PhotoStore, tmp_path: Path) -> None:
    slower = dataclasses.replace(THROUGH_ENCODER, encoder=EncoderOptions(learning_rate_scale=0.5))
    with pytest.raises(ValueError, match=r"rule 'vl-bert' .* add --set train.parameter_groups=task"):
        run(made, tmp_path, end_to_end=slower, train=dataclasses.replace(TRAIN, parameter_groups="vl-bert"))


def test_half_precision_and_chunks(made: PhotoStore, whole: PretrainResult, tmp_path: Path) -> None:
    chunks = dataclasses.replace(THROUGH_ENCODER, encoder=EncoderOptions(recompute=True, region_chunk=4))
    done = run(made, tmp_path / "run", end_to_end=chunks, train=dataclasses.replace(TRAIN, precision="bf16", steps=2))
    for ours, theirs in zip(log(done), log(whole), strict=False):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05) and ours["loss"] != theirs["loss"]


# --- photos ---


def test_missing_photos_stop_the_run_or_are_counted(tmp_path: Path) -> None:
    made = write_photo_store(tmp_path, feature_dim=FEATURES)
    made.photo(image_id(2)).unlink()
    made.photo(image_id(5)).write_bytes(b"no photo")
    words = r"1 captioned image of 8 without a photo, such as 'photo-2': no file .*photo-2\.png; name"
    with pytest.raises(ValueError, match=words):
        run(made, tmp_path / "run")
    skipping = dataclasses.replace(THROUGH_ENCODER, photos=PhotoRules(skip_broken=True))
    done = run(made, tmp_path / "run", end_to_end=skipping)
    assert done.left_out.keys() == {image_id(2), image_id(5)} and "not an image" in done.left_out[image_id(5)]
    recorded = json.loads((done.run_dir / "config.json").read_text())["recorded"]
    assert recorded["missing_photos"] == 1
    with pytest.raises(ValueError, match=r"8 captioned images of 8 without a photo.* with --photos"):
        run(made, tmp_path / "other", end_to_end=dataclasses.replace(skipping, images=str(tmp_path / "store")))


def test_an_encoder_of_another_width(made: PhotoStore, tmp_path: Path) -> None:
    wider = dataclasses.replace(THROUGH_ENCODER, config=dataclasses.replace(ENCODER, base_channels=8))
    with pytest.raises(ValueError, match=r"makes features of width 256, those of record 'photo-0' have 128; name the"):
        run(made, tmp_path / "run", end_to_end=wider)


def test_an_encoder_computes_as_its_detector_unless_it_is_told() -> None:
    toy = choose_encoder("toy", None, None)
    assert toy.conventions != CONVENTIONS["vlbert-e2e"] and toy.weights.endswith("model.safetensors")
    assert choose_encoder("toy", None, "vlbert-e2e").conventions == CONVENTIONS["vlbert-e2e"]
    sizes = choose_encoder("vg-r101-c4-600", "random:0", None)
    assert (sizes.conventions, sizes.weights) == (CONVENTIONS["vlbert-e2e"], "random:0")
    assert toy.config.feature_dim > 0
    with pytest.raises(ValueError, match="--conventions 'other'"):
        choose_encoder("toy", None, "other")


# --- memory ---


class TooLarge:
    """A task whose largest batch needs more memory than there is anywhere."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)

    def worst_batch(self) -> WorstBatch:
        return WorstBatch(torch.ones(1, 2), "1 photo of 10^7 x 10^7 pixels", "a smaller short edge")

    def losses(self, model: nn.Module, batch: torch.Tensor) -> Any:
        return model(batch) * torch.ones(2**50)


def test_a_batch_that_does_not_fit_is_told_before_the_first_step() -> None:
    """Other errors are shown as they are."""
    task = TooLarge()
    fits_not = (ValueError, r"the largest batch, 1 photo of .* does not fit into the memory of cpu; a sm")
    for width, error, words in ((2, *fits_not), (3, RuntimeError, "shapes cannot be multiplied")):
        task.model = nn.Linear(width, 2)
        optimizer = torch.optim.SGD(task.model.parameters(), lr=1.0)
        with pytest.raises(error, match=words):
            rehearse(task, task.model, optimizer, Accelerator(cpu=True), accumulation=1)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("place", "count"), [(BACKWARD, 3), (TENSORS, 5)])
def test_a_killed_run_goes_on_to_the_same_bits(
    made: PhotoStore, tmp_path: Path, ranks: int, place: str, count: int
) -> None:
    """In step 2, in its first half, or step 3 of two processes; and in the middle of the second checkpoint."""

    def training(name: str) -> EndToEndTraining:
        return EndToEndTraining(made, tmp_path / name, "vlbert", 1, 2 // ranks, 4, False, checkpoint_every=1)

    def ended(work: Callable[[], object], name: str) -> list[int]:
        return run_ranks(work, ranks, tmp_path / name)

    assert ended(training("whole"), "said-whole") == [0] * ranks, said(tmp_path / "said-whole")
    assert ended(Killed(training("run"), place, count), "said-killed")[0] == -9, said(tmp_path / "said-killed")
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) in (1, 2, 3)
    assert ended(training("run"), "said-again") == [0] * ranks, said(tmp_path / "said-again")
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole") and len(log_of(tmp_path / "run")) == 4
    last = "checkpoints/step-00000004"
    assert_equal_checkpoints(tmp_path / "whole" / last, tmp_path / "run" / last)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDS)
def test_two_processes_are_two_micro_batches_of_one(made: PhotoStore, tmp_path: Path, kind: str) -> None:
    """Of every system. Photos are padded to the largest of their micro-batch, which both must therefore share."""
    labelled, logs = write_labelled(tmp_path / "labelled"), {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        runs = [
            EndToEndTraining(made, folder / case, case, 2, 2 // ranks, 4, kind == "float64", labelled=labelled)
            for case in CASES
        ]
        assert run_ranks(InTurn(runs), ranks, folder) == [0] * ranks, said(folder)
        logs[ranks] = {case: log_in(folder / case) for case in CASES}
    for case in CASES:
        assert largest_difference(logs[1][case], logs[2][case]) < BOUNDS[kind], case
        assert logs[1][case][0]["loss"] != logs[1][case][-1]["loss"]
