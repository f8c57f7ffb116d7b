"""Models that were trained on features with six numbers of each box are asked on stores that have none: whatever is
asked, the answer is that of features which were put together by hand."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, TINY, captioned, make_store, pretrain_with
from evaluated_models import SIZES, VILBERT, build
from tiny_commands import Cli, ok, one_line

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import StoreWriter
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
from roibeam.pipelines.analysis.probe import pair_batch
from roibeam.pipelines.collection.judging.match_scores import MatchScores
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VisualBertSampling
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.toyworld.entities import ToyEntities
from roibeam.pipelines.toyworld.perfect_store import FEATURE_DIM, Perception, image_id, write_perfect_store
from roibeam.pipelines.toyworld.picture import SCENES_NAME, describe
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.model_conversion import writer_of
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGES, SEED, WIDER = 12, 5, FEATURE_DIM + 6
MODEL = SIZES | {"region_feature_size": WIDER, "vocab_size": 300, "max_position_embeddings": 40}


class World(NamedTuple):
    """`store` holds features as a detector gives them, `by_hand` the same with six numbers behind. Nothing may be
    changed there."""

    folder: Path
    store: Path
    by_hand: Path


def by_hand(record: RegionRecord) -> np.ndarray:
    """(K, D + 6) float32, region by region."""
    rows = []
    for (x1, y1, x2, y2), feature in zip(record.boxes, record.features, strict=True):
        width, height = np.float32(record.width), np.float32(record.height)
        left, top, across, down = x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height
        rows.append([*feature.astype(np.float32), left, top, left + across, top + down, across, down])
    return np.array(rows, np.float32)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("boxes")
    pictures = [describe(generate(SEED, index)) for index in range(IMAGES)]
    (folder / SCENES_NAME).write_text("".join(each.to_line() for each in pictures), "ascii")
    ToyEntities(str(folder / "entities"), folder, SEED, IMAGES).write()
    scenes = [(image_id(index), picture.scene) for index, picture in enumerate(pictures)]
    write_perfect_store(folder / "store", scenes, Perception())
    texts = [caption.text for picture in pictures for caption in picture.captions]
    load_tokenizer("captions", [f"{text} ." for text in texts]).save(folder / "tokenizer")
    images = [{"id": index, "file_name": f"{image_id(index)}.jpg"} for index in range(IMAGES)]
    captions = [
        {"id": 10 * index + place, "image_id": index, "caption": caption.text}
        for index, picture in enumerate(pictures)
        for place, caption in enumerate(picture.captions)
    ]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    with FeatureStore(folder / "store") as store:
        classes = store.vocabulary["classes"]
        with StoreWriter(folder / "by-hand", feature_space="by-hand", classes=classes) as writer:
            for record in store:
                names = ("height", "width", "boxes", "class_ids", "class_scores")
                given: dict[str, Any] = {name: getattr(record, name) for name in names}
                writer.write(record.image_id, features=by_hand(record), **given)
    return World(folder, folder / "store", folder / "by-hand")


def visual_bert(**fields: Any) -> Any:
    return build("VisualBERT", **MODEL | fields)


def saved(folder: Path) -> str:
    visual_bert().save_pretrained(folder / "model")
    return str(folder / "model")


def of_ucla(folder: Path) -> str:
    """A file as UCLA's code saves it."""
    model, replaced = visual_bert(first_region_segment=0), (
        ("visual_bert.", "bert.bert."),
        ("cls.", "bert.cls."),
        ("visual_token_type_embeddings", "token_type_embeddings_visual"),
        ("visual_position_embeddings", "position_embeddings_visual"),
        ("visual_projection", "projection"),
    )  # fmt: skip
    state = {}
    for name, tensor in writer_of(model).to_official(model).items():
        for old, new in replaced:
            name = name.replace(old, new)
        state[name] = tensor
    torch.save(state, folder / "model_state_epoch_9.th")
    return str(folder / "model_state_epoch_9.th")


def asking(command: str, world: World, out: Path) -> tuple[object, ...]:
    given: dict[str, tuple[object, ...]] = {
        "evaluate": ("--captions", world.folder / "captions.json"),
        "attention": ("--entities", world.folder / "entities", "--max-images", 2),
        "probe": (image_id(3), "a red [MASK] and a [MASK]"),
    }
    return (*given[command], "--tokenizer", world.folder / "tokenizer", "--out", out, "--device", "cpu")


# Of each command the file that it writes, and what stands there of the answers alone.
ANSWERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "evaluate": ("results.json", lambda content: content["figures"]),
    "attention": ("attention.json", lambda content: content["populations"]),
    "probe": ("out.json", lambda content: {name: value for name, value in content.items() if name != "notes"}),
}


@pytest.mark.parametrize("checkpoint", [saved, of_ucla])
@pytest.mark.parametrize("command", ANSWERS)
def test_answers_are_those_of_features_put_together_by_hand(
    command: str, checkpoint: Callable[[Path], str], world: World, tmp_path: Path, roibeam: Cli
) -> None:
    """And what the file of a checkpoint doesn't tell is said, where it is assumed."""
    given, (name, answers_of), answers = checkpoint(tmp_path), ANSWERS[command], []
    for store in (world.store, world.by_hand):
        out = tmp_path / store.name
        out.mkdir()
        asked = asking(command, world, out / "out.svg" if command == "probe" else out)
        done = ok(roibeam(command, given, *asked, "--store", store))
        assert ("it is six numbers wider than the store's features" in done.out) == (store == world.store)
        pictures = {path.name: path.read_bytes() for path in out.glob("*.svg")} if command == "attention" else {}
        answers.append((answers_of(json.loads((out / name).read_text())), pictures))
    assert answers[0] == answers[1] and bool(answers[0][1]) == (command == "attention")


def test_a_judge_of_pairs_and_python_read_them_alike(world: World, tmp_path: Path) -> None:
    given, tokenizer = saved(tmp_path), load_tokenizer(str(world.folder / "tokenizer"))
    found = load_model(given)
    with FeatureStore(world.store) as store:
        record = store[image_id(3)]
    with_numbers = dataclasses.replace(record, features=by_hand(record))
    assert found.as_read(record).equals(with_numbers) and found.as_read(with_numbers) is with_numbers
    text = "a red bell"
    with torch.no_grad():
        batch = pair_batch(with_numbers, torch.from_numpy(tokenizer.encode(text).ids))
        expected = float(cast(Any, found.model).match_log_odds(cast(Any, found.model).encode(batch))[0])
    scores = MatchScores(given, tokenizer=str(world.folder / "tokenizer"))
    assert scores.log_odds(record, text) == pytest.approx(expected, abs=1e-5)


def test_what_the_run_did_decides_and_not_the_width(world: World, tmp_path: Path) -> None:
    """A model of features that are six wider by themselves, such as VinVL's, gets no numbers."""
    folder = Path(saved(tmp_path / "checkpoints" / "step-00000001")).parent
    (folder / "state.json").write_text('{"step": 1}')
    for rules, is_wider in (({"box_numbers": True}, True), ({"box_numbers": False}, False), ({}, False)):
        (folder / "config.json").write_text(json.dumps({"task": {"sampling": rules}, "recorded": {}}))
        with FeatureStore(world.store) as store:
            read = load_model(str(folder)).as_read(store[image_id(3)])
        assert read.features.shape[1] == (WIDER if is_wider else FEATURE_DIM)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        # ViLBERT adds none: its features have them, or it was made for others.
        (
            lambda: ViLbertForPreTraining(
                ViLbertConfig(**VILBERT | {"region_feature_size": WIDER, "vocab_size": 300, "region_target_size": 25})
            ),
            f"features have width {FEATURE_DIM}, the model was made for {WIDER}, with six numbers of each box behind "
            f"them; give a store whose features end in them",
        ),
        (
            lambda: visual_bert(region_feature_size=FEATURE_DIM - 6),
            f"features have width {FEATURE_DIM}, the model was made for {FEATURE_DIM - 6}, without six numbers of each "
            f"box behind them; give a store whose features do not end in such",
        ),
        (
            lambda: visual_bert(region_feature_size=FEATURE_DIM + 7),
            f"features have width {FEATURE_DIM}, the model was made for {FEATURE_DIM + 7}; was the store extracted "
            f"with another detector?",
        ),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "attention", "probe"])
def test_another_width_is_one_line_that_tells_both(
    command: str, model: Callable[[], Any], says: str, world: World, tmp_path: Path, roibeam: Cli
) -> None:
    model().save_pretrained(tmp_path / "model")
    out = tmp_path / ("out.svg" if command == "probe" else "out")
    asked = (*asking(command, world, out), "--store", world.store)
    refused = one_line(roibeam(command, tmp_path / "model", *asked))
    assert says in refused
    assert "another detector" in says or "detector" not in refused


@pytest.mark.parametrize("width", [0, 6])
def test_training_says_which_setting_it_is(width: int) -> None:
    system, tokenizer = SYSTEMS["visualbert"], load_tokenizer("captions", [*CAPTIONS, *CAPTIONS])
    record = next(iter(make_store().values()))
    own = {"region_feature_size": record.features.shape[1] + width, "vocab_size": tokenizer.vocab_size}
    config = VisualBertConfig(**SIZES | own)
    sampler = system.sampler(VisualBertSampling(box_numbers=not width), tokenizer, config, num_classes=0)
    with pytest.raises(ValueError, match=f"; set sampling.box_numbers={'true' if width else 'false'}") as refused:
        sampler.check(record)
    assert "detector" not in str(refused.value)


def test_a_run_searches_as_it_trains(tmp_path: Path) -> None:
    """Retrieval at its evaluations, and `evaluate` on the run's own word."""
    rows = [(f"image-{number}", f"{text} {place}") for number, text in enumerate(CAPTIONS) for place in "ab"]
    asked = [row for row in rows if row[0] in ("image-1", "image-4", "image-6")]
    store = make_store()
    found = pretrain_with(
        [captioned(store, rows)], tmp_path / "run", system=SYSTEMS["visualbert"], model_overrides=TINY,
        sampling=VisualBertSampling(box_numbers=True),
        train_config=TrainConfig(steps=2, learning_rate=1e-2, device="cpu", evaluate_every=2),
        data=DataConfig(batch_size=4, validation_retrieval=3), validation=captioned(store, asked),
    )  # fmt: skip
    loaded = load_model(str(tmp_path / "run"))
    result = evaluate_checkpoint(
        loaded, load_tokenizer(str(tmp_path / "run" / "tokenizer")), store, captioned(store, asked).captions,
        tmp_path / "found", config=EvaluationConfig(device="cpu", batch_size=4), min_match=0,
    )  # fmt: skip
    figures = {figure.name: figure.value for figure in result.figures}
    for name in ("text_to_image_r1", "image_to_text_r1", "text_to_image_r5"):
        assert found.evaluation[name] == figures[name]
