"""Held-out captions that the evaluations of a run ask about: `roibeam pretrain --validation-captions`."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from captioned_records import CAPTIONS, TINY, FakeStore, captioned, make_record, make_store, pretrain_with
from soak_share import some
from tiny_commands import TINY_ENCODER, Cli, Pictures, draw_pictures, ok, tiny_run
from toy_training import log_of

from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
from roibeam.pipelines.data.captions.corpus import CaptionTable
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.pretraining.run_data import KeptOut
from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.run_folder.run_summary import read_summary
from roibeam.pipelines.training.run_folder.training_data import trained_among
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

Given = Callable[..., tuple[object, ...]]
ALL = [(f"image-{number}", f"{caption} {place}") for number, caption in enumerate(CAPTIONS) for place in "ab"]
ASKED = [row for row in ALL if row[0] in ("image-1", "image-4", "image-6")]


def run(folder: Path, *, rows: list[tuple[str, str]] = ALL, asked: Any = ASKED, **changes: Any) -> PretrainResult:
    store = make_store()
    settings: dict[str, Any] = {
        "train_config": TrainConfig(steps=4, learning_rate=1e-2, device="cpu", evaluate_every=2),
        "data": DataConfig(batch_size=4),
        "model_overrides": TINY,
        "validation": None if asked is None else captioned(store, asked),
    }
    return pretrain_with([captioned(store, rows)], folder, **settings | changes)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return log_of(folder, "evaluation.jsonl")


@pytest.mark.parametrize("budget", [0, 60])
def test_evaluations_ask_about_them_and_training_never_sees_their_images(tmp_path: Path, budget: int) -> None:
    data = DataConfig(batch_size=4, max_tokens=budget)
    result = run(tmp_path / "run", data=data)
    assert result.asked == "6 held-out captions of 3 images"
    of_all = trained_among(tmp_path / "run", [f"image-{number}" for number in range(8)])
    assert of_all == [f"image-{number}" for number in (0, 2, 3, 5, 7)]
    assert any("3 images not trained on" in note for note in result.notes)
    # The same weights and words, asked about these captions as a run asks that trains on nothing else.
    alone = run(
        tmp_path / "alone", rows=ASKED, asked=None, data=data,
        tokenizer_spec=str(tmp_path / "run" / "tokenizer"),
    )  # fmt: skip
    first, own = evaluations(tmp_path / "run")[0], evaluations(tmp_path / "alone")[0]
    assert alone.asked == "the first captions trained on, with other masks"
    names = [name for name in own if name.startswith("masked")]
    assert len(names) >= 4 and first["step"] == own["step"] == 0
    for name in names:
        assert first[name] == pytest.approx(own[name], rel=1e-5), name
    # What was found, what was asked and what chance reaches on it stay in the folder, for its page.
    told = read_summary(tmp_path / "run")
    assert told is not None and told.held_out and told.asked == result.asked and told.evaluation == result.evaluation
    # To guess by frequencies is better than to hold all words for as likely, and worse than to know them.
    assert 0 < told.chance["masked_words"] <= math.log(told.items["masked_word_accuracy"]) < math.log(result.vocab_size)
    assert told.items["masked_word_accuracy"] >= 1 / told.chance["masked_word_accuracy"]
    assert "6 held-out captions of 3 images" in (tmp_path / "run" / "report.html").read_text()


def test_what_is_trained_does_not_depend_on_what_is_asked(tmp_path: Path) -> None:
    rows = [row for row in ALL if row not in ASKED]
    kept = run(tmp_path / "asked").training.last
    del kept["seconds"]
    never = run(tmp_path / "never", rows=rows, asked=None, tokenizer_spec=str(tmp_path / "asked" / "tokenizer"))
    assert {**never.training.last, **kept} == never.training.last


def test_only_as_many_captions_as_wanted_are_asked_about_and_all_are_kept_out(tmp_path: Path) -> None:
    few = run(tmp_path / "run", data=DataConfig(batch_size=4, validation_captions=2))
    assert few.asked == "2 held-out captions of 1 image"
    assert not trained_among(tmp_path / "run", ["image-1", "image-4", "image-6"])


def test_a_photo_is_known_by_its_number_however_its_id_is_spelled(tmp_path: Path) -> None:
    """COCO's names in one store, bare numbers in the other; what is labelled is looked through likewise."""
    numbers = (42, 43, 44)
    trained = {f"COCO_val2014_{number:012d}": make_record(f"COCO_val2014_{number:012d}", number) for number in numbers}
    held = {f"{number:012d}": make_record(f"{number:012d}", number) for number in (43, 50)}
    rows = [(image_id, CAPTIONS[place]) for place, image_id in enumerate(trained)]
    result = pretrain_with(
        [captioned(FakeStore(trained), rows)], tmp_path / "run", train_config=TrainConfig(steps=1, device="cpu"),
        data=DataConfig(batch_size=2), model_overrides=TINY,
        validation=captioned(FakeStore(held), [(image_id, "a dog") for image_id in held]),
    )  # fmt: skip
    assert any("1 image not trained on" in note for note in result.notes)
    left = ["COCO_val2014_000000000042", "COCO_val2014_000000000044"]
    assert trained_among(tmp_path / "run", list(trained)) == left
    labels = LabelledPhotos(tuple(labelled(name) for name in ("000000000042", "000000000043")), "", ("a",), (), {})
    kept_out = KeptOut({("coco", 43)})
    assert [each.image_id for each in kept_out.without_labelled(labels, None).images] == ["000000000042"]
    with pytest.raises(ValueError, match=r"all of 1 labelled photos of .* are validated on"):
        kept_out.without_labelled(replace(labels, images=labels.images[1:]), None)


@pytest.mark.parametrize(
    ("asked", "trained", "left"),
    [(None, "flickr30k", 0), ("flickr30k", None, 0), ("flickr30k", "flickr30k", 0), ("flickr30k", "coco", 2)],
)
def test_an_id_is_a_photo_unless_its_data_sets_differ(asked: str | None, trained: str | None, left: int) -> None:
    """Stores do not always know what their bare numbers are of."""
    photos = LabelledPhotos((labelled("42"), labelled("43")), "", ("a",), (), {})
    table = CaptionTable(["42", "43"], [(0, "a dog"), (1, "a cat")])
    source = SimpleNamespace(data_set=asked)
    kept_out = KeptOut.of(SimpleNamespace(rows=table, source=source))  # type: ignore[arg-type]
    if left:
        assert len(kept_out.without_labelled(photos, trained).images) == left
    else:
        with pytest.raises(ValueError, match="all of 2 labelled photos"):
            kept_out.without_labelled(photos, trained)


def labelled(image_id: str) -> LabelledImage:
    """Without an object."""
    none, no_number, areas = np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.float32)
    boxes, attributes = np.zeros((0, 4), np.float32), np.zeros((0, 0), np.int64)
    return LabelledImage(image_id, image_id, None, boxes, none, attributes, none, areas, no_number, no_number, ())


def test_what_is_left_out_of_them_is_told(tmp_path: Path) -> None:
    result = run(tmp_path / "run", asked=[*ASKED, ("image-6", "  ")])
    assert any(note.startswith("validation: ") and "1" in note for note in result.notes), result.notes
    single = [(image_id, text) for image_id, text in ASKED if text.endswith("a")]
    with pytest.raises(ValueError, match=r"^validation: .*caption"):
        run(tmp_path / "single", asked=single, system=SYSTEMS["visualbert"])


def test_it_goes_on_only_with_the_same_captions(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_at_step=2)
    with pytest.raises(ValueError, match="validation"):
        run(tmp_path / "run", asked=ASKED[:4], rows=[row for row in ALL if row not in ASKED], resume=True)
    assert run(tmp_path / "run", resume=True).training.step == 4


def test_nothing_to_train_on_and_another_detectors_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="all of 3 captioned images are validated on; nothing is left to train on"):
        run(tmp_path / "run", rows=ASKED)
    assert not (tmp_path / "run").exists()
    other = make_store()
    other.fingerprint = other.fingerprint.__class__("imported:other", numerics={"torch": "any"})
    with pytest.raises(ValueError, match="different feature spaces"):
        run(tmp_path / "run", validation=captioned(other, ASKED))


@pytest.mark.parametrize("name", some(SYSTEMS, ("vilbert", "visualbert", "imagebert")))
def test_every_system_is_validated(tmp_path: Path, name: str) -> None:
    """VisualBERT asks for second captions of one image, ImageBERT and the others for pairs that do not belong."""
    overrides = {} if name == "vilbert" else TINY  # its streams have depths of their own
    result = run(tmp_path / "run", system=SYSTEMS[name], model_overrides=overrides)
    found = {key for key, value in result.evaluation.items() if value is not None}
    assert "masked_word_accuracy" in found and np.isfinite([result.evaluation[key] for key in found]).all()


MATCHED = {**TINY, "with_relationship_head": True, "with_pooler": True}


def test_retrieval_at_each_evaluation_is_that_of_roibeam_evaluate(tmp_path: Path) -> None:
    data = DataConfig(batch_size=4, validation_retrieval=3)
    changes = {"data": data, "model_overrides": MATCHED}
    found = run(tmp_path / "run", **changes)
    own = [line["text_to_image_r1"] for line in evaluations(tmp_path / "run")]
    assert len(own) == 3 and found.evaluation["text_to_image_r1"] == own[-1]
    loaded = load_model(str(tmp_path / "run"))
    store = make_store()
    captions = captioned(store, ASKED).captions
    result = evaluate_checkpoint(
        loaded, load_tokenizer(str(tmp_path / "run" / "tokenizer")), store, captions, tmp_path / "found",
        config=EvaluationConfig(device="cpu", batch_size=4), min_match=0,
    )  # fmt: skip
    figures = {figure.name: figure.value for figure in result.figures}
    searched = [name for name in figures if name.endswith(("_r1", "_r5", "_r10"))]
    assert len(searched) == 6
    for name in searched:
        assert found.evaluation[name] == figures[name], name
    # What is searched changes nothing that is trained.
    without = run(tmp_path / "without", **{**changes, "data": DataConfig(batch_size=4)})
    assert without.training.last | {"seconds": 0} == found.training.last | {"seconds": 0}


def test_a_model_that_cannot_match_is_not_searched_with(tmp_path: Path) -> None:
    data = DataConfig(batch_size=4, validation_retrieval=3)
    with pytest.raises(ValueError, match=r"validation_retrieval: this model has no match head"):
        run(tmp_path / "run", data=data)
    with pytest.raises(ValueError, match=r"name them with --validation-captions"):
        run(tmp_path / "run", data=data, asked=None)
    with pytest.raises(ValueError, match="0, or 2 images or more, got 1"):
        DataConfig(validation_retrieval=1)


# --- as a user gives it ---


@pytest.fixture
def world(pictures: Pictures, tmp_path: Path) -> Path:
    """A folder with two caption files of the pictures: of all of them, and of the last three."""
    given = json.loads(pictures.captions.read_text())
    for name, wanted in (("train", range(8)), ("val", range(5, 8))):
        rows = [each for each in given["annotations"] if each["image_id"] in wanted]
        (tmp_path / f"{name}.json").write_text(json.dumps({**given, "annotations": rows}))
    return tmp_path


@pytest.fixture
def given(pictures: Pictures, world: Path) -> Given:
    """Options of a run on all captions, and more."""
    common = ("--store", pictures.store, "--captions", world / "train.json", *tiny_run(4))
    return lambda *more: (*common, *more)


def test_on_the_command_line(roibeam: Cli, pictures: Pictures, world: Path, given: Given) -> None:
    done = ok(roibeam("pretrain", world / "run", *given("--validation-captions", world / "val.json")))
    assert "evaluated on 3 held-out captions of 3 images:" in done.out
    assert "3 images not trained on: the evaluations use images of the same file" in done.err
    # Without being told how often: before the first step and with every checkpoint.
    assert [line["step"] for line in evaluations(world / "run")] == [0, 1, 2, 3, 4]
    recorded = json.loads((world / "run" / "config.json").read_text())["recorded"]["validation"]
    assert recorded["captions"] == 3 and recorded["store"] == str(pictures.store)
    assert "5, of the weights as trained, on 3 held-out captions" in (world / "run" / "report.html").read_text()
    # Such a run was not trained on them.
    judged = ("--captions", world / "val.json", "--no-retrieval", "--out", world / "found")
    told = roibeam("evaluate", world / "run", "--store", pictures.store, *judged)
    assert told.code == 0 and "no held-out evaluation" not in told.out + told.err


def test_page_terminal_and_evaluate_judge_alike(roibeam: Cli, pictures: Pictures, world: Path, given: Given) -> None:
    """The same figure of the same held-out images: its value, its interval and its verdict; and each figure of a run
    has an interval over images, however many words an image has."""
    searched = ("--system", "imagebert", "--set", "data.validation_retrieval=3", "--set", "model.masked_loss_pairs=all")
    asked = (*searched, "--validation-captions", world / "val.json")
    done = roibeam("pretrain", world / "run", *given(*asked))
    told = json.loads(roibeam("pretrain", world / "run", *given(*asked), "--json").out.splitlines()[-1])
    judged = ("--captions", world / "val.json", "--out", world / "found")
    found = roibeam("evaluate", world / "run", "--store", pictures.store, *judged)
    assert done.code == found.code == 0, done.err + found.err
    beside = json.loads((world / "found" / "results.json").read_text())["figures"]
    of_run = {figure["name"]: figure for figure in told["figures"]}
    assert {name: figure["value"] for name, figure in of_run.items()} == told["evaluation"]
    same = [name for name in of_run if name.endswith(("_r1", "_r5", "_r10"))]
    assert len(same) == 6
    rows = {row.split("  ")[0]: row for row in found.out.splitlines()}
    page = (world / "run" / "report.html").read_text()
    for name in same:
        for what in ("value", "low", "high", "chance", "items"):
            assert of_run[name][what] == pytest.approx(beside[name][what], abs=1e-12), (name, what)
        label = name.replace("_r", ", R@").replace("_", " ")
        assert rows[label].endswith(of_run[name]["verdict"]), rows[label]
        title = label[0].upper() + label[1:].replace(", ", ": ")
        shown = f"{100 * beside[name]['low']:.1f} % to {100 * beside[name]['high']:.1f} %"
        assert page_row(page, title)[1:2] == [shown] and of_run[name]["verdict"] in page_row(page, title)[-1]
    losses = [of_run[name] for name in ("masked_words", "matching", "masked_regions", "masked_region_features")]
    assert all(each["verdict"].endswith("than chance") or each["verdict"] == "at chance" for each in losses), losses
    assert all(each["low"] < each["value"] < each["high"] for each in losses)
    last = evaluations(world / "run")[-1]
    beside_it = {name: of_run["masked_words"][name] for name in ("low", "high", "chance", "items")}
    assert last["beside"]["masked_words"] == beside_it
    for name, label in (("masked_words", "masked words, loss"), ("matching_accuracy", "matching, right")):
        assert any(line.startswith(label) and line.endswith(of_run[name]["verdict"]) for line in done.out.splitlines())


def page_row(page: str, head: str) -> list[str]:
    found = re.search(rf'<th scope="row"[^>]*>{re.escape(head)}</th>(.*?)</tr>', page)
    assert found is not None, head
    return re.findall(r"<td[^>]*>(.*?)</td>", found[1])


def write_karpathy(pictures: Pictures, world: Path) -> Path:
    """The eight pictures with their captions in the splits of a Karpathy file; captions of `val` as COCO has them."""
    given = json.loads(pictures.captions.read_text())
    splits = ["train"] * 3 + ["restval", "test", "val", "val", "test"]
    images, asked = [], []
    for number, (image, split) in enumerate(zip(given["images"], splits, strict=True)):
        rows = [row for row in given["annotations"] if row["image_id"] == image["id"]]
        asked += rows if split == "val" else []
        sentences = [{"raw": row["caption"], "tokens": row["caption"].split(), "sentid": row["id"]} for row in rows]
        images.append({"filename": image["file_name"], "imgid": number, "split": split, "sentences": sentences})
    (world / "val-alone.json").write_text(json.dumps({**given, "annotations": asked}))
    (world / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return world / "dataset_coco.json"


def test_of_a_karpathy_file_the_split_val_is_asked_about(roibeam: Cli, pictures: Pictures, world: Path) -> None:
    """Given for both, its training splits are trained on; a file of its captions of val alone asks the same."""
    splits = write_karpathy(pictures, world)
    options = ("--store", pictures.store, "--captions", splits, *tiny_run(4))
    found = {}
    for name, asked in (("both", splits), ("alone", world / "val-alone.json")):
        done = ok(roibeam("pretrain", world / name, *options, "--validation-captions", asked))
        assert "evaluated on 2 held-out captions of 2 images:" in done.out
        assert "not trained on: the evaluations" not in done.err  # no image of val is a training image
        found[name] = evaluations(world / name)
        found[f"{name}, digest"] = json.loads((world / name / "config.json").read_text())["task"]["validation"]
    assert found["both"] == found["alone"] and found["both, digest"] == found["alone, digest"]
    names = [path.stem for path in sorted(pictures.photos.iterdir())]
    assert trained_among(world / "both", names) == names[:4]


def test_a_store_of_their_own(roibeam: Cli, world: Path, given: Given, tiny_network: tuple[str, ...]) -> None:
    held = draw_pictures(world / "held", tiny_network, count=3, seed=5)
    validation = ("--validation-captions", held.captions, "--validation-store", held.store)
    done = ok(roibeam("pretrain", world / "run", *given(*validation)))
    assert "evaluated on 3 held-out captions of 3 images:" in done.out


def test_through_the_encoder(roibeam: Cli, world: Path, given: Given) -> None:
    searched = ("--system", "imagebert", "--set", "data.validation_retrieval=2")
    options = given(*TINY_ENCODER, *searched, "--validation-captions", world / "val.json")
    assert "evaluated on 3 held-out captions of 3 images:" in ok(roibeam("pretrain", world / "run", *options)).out
    lines = evaluations(world / "run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(line["image_to_text_r5"] == 1.0 and line["text_to_image_r1"] in (0, 0.5, 1) for line in lines)


def test_a_broken_photo_is_left_out_of_the_search(roibeam: Cli, pictures: Pictures, world: Path, given: Given) -> None:
    photos = shutil.copytree(pictures.photos, world / "images")
    photo = next(photos.glob("*00006*"))
    photo.write_bytes(photo.read_bytes()[:200])
    searched = ("--system", "imagebert", "--set", "data.validation_retrieval=3")
    common = given(*TINY_ENCODER, *searched, "--photos", photos, "--validation-captions", world / "val.json")
    stopped = roibeam("pretrain", world / "run", *common)
    assert stopped.code == 1 and "leave such out with --skip-missing-photos" in stopped.err, stopped.err
    done = ok(roibeam("pretrain", world / "run", *common, "--skip-missing-photos"))
    assert "1 image left out, such as 'sample_00006': " in done.out
    assert "evaluated on 2 held-out captions of 2 images:" in done.out
    photo = next(photos.glob("*00007*"))
    photo.write_bytes(photo.read_bytes()[:200])
    alone = roibeam("pretrain", world / "alone", *common, "--skip-missing-photos")
    assert alone.code == 1 and "2 photos of held-out captions cannot be used, so a search has" in alone.err


def test_what_does_not_fit_is_told(roibeam: Cli, pictures: Pictures, world: Path, given: Given) -> None:
    for more, expected in (
        (("--drop-held-out",), "--drop-held-out: name what is held out, with --held-out"),
        (("--validation-store", pictures.store), "name the captions too, with --validation-captions"),
        (("--validation-captions", world / "none.json"), "no such file or folder: --validation-captions"),
        (("--validation-captions", world / "train.json"), "nothing is left to train on"),
        (("--validation-captions", world / "val.json", "--set", "data.validation_captions=-1"), "must not be negative"),
    ):
        done = roibeam("pretrain", world / "run", *given(*more))
        assert done.code == 1 and expected in done.err, done.err
        assert not (world / "run").exists()
