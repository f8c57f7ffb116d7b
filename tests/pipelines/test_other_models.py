"""Models of other libraries through the commands: what a store records of them, and who may name them."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_commands import Cli, Pictures, ok, tiny_sizes

from roibeam.extraction.adapters.any_detector import CROPS_AT_ONCE, build_detector
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.weights.detector_choice import choose_detector
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.extract.photos_to_store import extract
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec

CODE = """
import numpy as np
import torch

NAMES = ["left", "right"]

def halves(photo):
    height, width = photo.shape[:2]
    middle = width / 2
    boxes = [[0, 0, middle, height], [middle, 0, width, height]]
    return boxes, [0.9, 0.4], ["left", "right"], [[1.0, 2.0], [3.0, 4.0]]

def boxes_alone(photo):
    return halves(photo)[:3]

def colour(crop):
    return crop.reshape(-1, 3).mean(axis=0) / 255

def means(photo):
    pixels = torch.from_numpy(photo).permute(2, 0, 1)[None].float()
    return torch.nn.functional.avg_pool2d(pixels, 8)[0] / 255
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "own.py"
    file.write_text(CODE, "utf-8")
    return file


@pytest.fixture(scope="module")
def made(models: Path, pictures: Pictures) -> Path:
    """Its store of vectors of halves; read only."""
    store = models.parent / "store"
    names = {"detector": f"python:{models}:boxes_alone", "backbone": f"python:{models}:colour"}
    assert extract(pictures.photos, store, **names, device="cpu").succeeded
    return store


def test_vectors_are_the_backbones_and_boxes_and_classes_the_detectors(made: Path, pictures: Pictures) -> None:
    import cv2

    store = FeatureStore(made)
    assert not verify_store(made) and store.vocabulary["classes"] == ["left", "right"]
    image_id = next(store.ids())
    record = store.get(image_id)
    photo = cv2.imread(str(next(pictures.photos.glob(f"{image_id}.*"))))[:, :, ::-1]
    assert record.boxes[1].tolist() == [photo.shape[1] / 2, 0, photo.shape[1], photo.shape[0]]
    right = photo[:, photo.shape[1] // 2 :].reshape(-1, 3).mean(axis=0) / 255
    np.testing.assert_allclose(record.features[1].astype(np.float32), right, rtol=1e-3)
    assert record.class_ids.tolist() == [0, 1] and record.class_scores.tolist() == pytest.approx([0.9, 0.4])
    assert record.class_distribution is None and record.attribute_ids is None
    assert "distribution none" in (made / "report.html").read_text("utf-8")


def test_what_was_made_of_detections_and_of_given_boxes_means_the_same(
    made: Path, models: Path, pictures: Pictures, tmp_path: Path
) -> None:
    """So a model that was pre-trained on the first is fine-tuned on the second; another backbone is refused."""
    lines = [json.dumps({"image_id": each, "boxes": [[0, 0, 20, 20]]}) for each in FeatureStore(made).ids()]
    (tmp_path / "boxes.jsonl").write_text("\n".join(lines), "utf-8")
    given = {"boxes": tmp_path / "boxes.jsonl", "device": "cpu"}
    extract(pictures.photos, tmp_path / "given", backbone=f"python:{models}:colour", **given)
    extract(pictures.photos, tmp_path / "cells", backbone=f"python:{models}:means", **given)
    own, same, other = (FeatureStore(each).fingerprint for each in (made, tmp_path / "given", tmp_path / "cells"))
    assert own.meaning == same.meaning != other.meaning
    assert len({own.feature_space, same.feature_space, other.feature_space}) == 3
    assert own.details["boxes"]["num_classes"] == 2 and same.details["boxes"]["num_classes"] == 0


def test_a_detectors_own_vectors_have_the_detector_in_their_meaning(
    models: Path, pictures: Pictures, tmp_path: Path
) -> None:
    extract(pictures.photos, tmp_path / "own", detector=f"python:{models}:halves", device="cpu")
    store = FeatureStore(tmp_path / "own")
    assert store.get(next(store.ids())).features.tolist() == [[1, 2], [3, 4]]
    assert "detector" in store.fingerprint.meaning_details and "backbone" not in store.fingerprint.details


def test_a_store_says_what_its_models_were_and_not_how_to_run_them(made: Path, models: Path) -> None:
    text = (made / "manifest.json").read_text("utf-8") + (made / "plan.json").read_text("utf-8")
    assert "def halves" not in text and "own.py:colour" in text
    recorded = json.loads((made / "manifest.json").read_text("utf-8"))["config"]["detector"]
    spec = DetectorSpec.from_json(recorded)
    assert spec.backbone == NamedModel(f"python:{models}:colour", digest=spec.models[0].digest)
    assert json.loads(json.dumps(spec.to_json())) == recorded


def test_models_are_named_again_for_a_rerun_and_a_repair(
    roibeam: Cli, made: Path, models: Path, pictures: Pictures, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(made, tmp_path / "store"))
    (data,) = store.glob("part-*.lmdb")
    data.unlink()
    again = ("--detector", f"python:{models}:boxes_alone", "--backbone", f"python:{models}:colour")
    repair = ("store", "repair", store, "--photos", pictures.photos)
    assert "give it again, --detector python:" in roibeam(*repair).err
    changed = tmp_path / "own.py"
    changed.write_text(CODE.replace("/ 255", "/ 256"), "utf-8")
    others = ("--detector", f"python:{changed}:boxes_alone", "--backbone", f"python:{changed}:colour")
    assert "is another file than that which made" in roibeam(*repair, *others).err
    ok(roibeam(*repair, *again))
    assert FeatureStore(store).manifest.content_digest == FeatureStore(made).manifest.content_digest
    result = roibeam("extract", pictures.photos, store, *others)
    assert result.code and "was made with other settings: feature_space.backbone.code" in result.err
    assert "nothing to do" in ok(roibeam("extract", pictures.photos, store, *again)).out
    assert "made by a model of another library: give --detector" in roibeam("extract", pictures.photos, store).err
    plan = ok(roibeam("extract", pictures.photos, tmp_path / "new", *again, "--dry-run")).out
    assert "kB per image; rests on" in plan, plan  # no advice about probabilities that are not kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--backbone python:OWN:colour", "give their source: --detector NAME or --boxes FILE"),
        ("--detector python:OWN:boxes_alone", "has no vectors of its own; add a --backbone"),
        ("--detector python:OWN:halves --preset vinvl", "--preset vinvl does not go with --detector python:"),
        ("--detector python:OWN:halves --weights random:1", "it brings its own; leave it out"),
        ("--detector python:OWN:halves --pool crop", "there is no backbone"),
        ("--detector python:OWN:halves --batched", "takes one photo at a time; leave --batched out"),
        ("--detector python:OWN:halves --distribution top-2", "gives no probabilities of all classes"),
        ("--detector python:OWN:halves --image-feature region", "region: this detector has no vectors of given boxes"),
        ("--detector python:OWN", "expected python:FILE.py:FUNCTION"),
        ("--detector toy --backbone resnet50", "names no model; expected one such as torchvision:"),
        ("--detector toy --backbone python:OWN:colour --pool roi", "gives no map of the photo; take --pool crop"),
        ("--detector toy --backbone python:OWN:colour --pool mean", "choose one of roi, crop"),
        ("--detector python:OWN:halves --set backbone.longest_side=9", "--set backbone.longest_side=9: there is no"),
        ("--detector python:OWN:halves --image-feature region", "--image-feature region: this detector has no vectors"),
        ("--detector python:OWN:halves --boxes BOXES", "--boxes: this detector has no vectors of given boxes"),
        ("--backbone python:OWN:colour --boxes BOXES --set detector.longest_side=9", "are given, so no detector runs"),
        ("--detector facebook/detr-resnet-50", "names of other libraries' models begin with torchvision:, hf: or"),
        ("--detector toy --queries OWN", "takes none; leave it out"),
        ("--detector python:OWN:halves --queries OWN", "looks for its own classes and takes no queries"),
        ("--detector mask-rcnn-r101-fpn --weights OWN --queries OWN", "own.py does not go with --detector mask-rcnn"),
        ("--detector toy --backbone python:OWN:colour --set backbone.name=x", "backbone has no field 'name'"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_is_written(
    roibeam: Cli, models: Path, pictures: Pictures, tmp_path: Path, options: str, words: str
) -> None:
    boxes = tmp_path / "boxes.jsonl"
    boxes.write_text(
        "".join(f'{{"image_id": "{each.stem}", "boxes": [[0, 0, 9, 9]]}}\n' for each in pictures.photos.iterdir())
    )
    options = options.replace("OWN", str(models)).replace("BOXES", str(boxes))
    result = roibeam("extract", pictures.photos, tmp_path / "out", *shlex.split(options))
    lines = [line for line in result.err.splitlines() if line.startswith("roibeam: ")]
    assert result.code and len(lines) == 1 and words in lines[0], result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("detector", "others", "words"),
    [
        ("OWN:halves", {"pool": "crop"}, "pool: python:.*takes no such argument"),
        ("OWN:halves", {"preset": "vinvl", "colour": 1}, "colour, preset: python:.*takes no such argument"),
        ("toy", {"queries": "OWN"}, "queries: toy takes no such argument"),
        ("toy", {"backbone": "OWN:colour", "queries": "OWN"}, "queries: toy takes no such argument"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    models: Path, detector: str, others: dict[str, str], words: str
) -> None:
    own = f"python:{models}"
    with pytest.raises(ValueError, match=words):
        build_detector(
            detector.replace("OWN", own), **{name: str(value).replace("OWN", own) for name, value in others.items()}
        )


def test_what_is_trained_end_to_end_is_of_the_visual_genome_family() -> None:
    with pytest.raises(ValueError, match="'hf:facebook/detr-resnet-50' is of another library"):
        choose_detector("hf:facebook/detr-resnet-50")


def test_a_vector_does_not_depend_on_how_many_boxes_there_are(models: Path) -> None:
    """A pass has one shape for any number of crops; regions of the toy detector with vectors of a map."""
    photo = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    boxes = np.array([[0, 0, 9, 9], [3, 4, 50, 60]] * CROPS_AT_ONCE, np.float32)
    for function in ("colour", "means"):
        backbone = f"python:{models}:{function}"
        alone = build_detector(backbone=backbone, given_boxes=True)
        many, one = (alone([photo], boxes=[each])[0].features for each in (boxes, boxes[:1]))
        assert np.array_equal(many[0], one[0]) and np.array_equal(many[0], many[2]) and len(many) == len(boxes)
        assert alone([photo], boxes=[boxes[:0]])[0].features.shape == (0, 3)


def test_a_vector_of_photos_that_are_not_turned_means_another_thing(models: Path) -> None:
    """The detector's conventions decide how a photo is decoded, and so what the backbone sees."""
    for orientation, recorded in (("applied", None), ("ignored", "ignored")):
        conventions = replace(CONVENTIONS["hf"], exif_orientation=orientation)
        found = build_detector("toy", conventions=conventions, backbone=f"python:{models}:colour").describe()
        assert found["backbone"].get("exif_orientation") == recorded


def test_a_loss_over_classes_says_that_it_trains_on_the_best_class(
    roibeam: Cli, made: Path, pictures: Pictures, tmp_path: Path
) -> None:
    run = ("pretrain", tmp_path / "run", "--store", made, "--captions", pictures.captions, "--device", "cpu")
    result = ok(roibeam(*run, "--system", "vilbert", "--steps", 1, *tiny_sizes("vilbert")))
    assert "has no probabilities of all classes: the loss trains on each region's best class" in result.err, result.err


def test_stores_of_one_backbone_are_mixed_where_nothing_reads_classes(
    roibeam: Cli, models: Path, made: Path, pictures: Pictures, tmp_path: Path
) -> None:
    lines = [json.dumps({"image_id": each, "boxes": [[0, 0, 20, 20]]}) for each in FeatureStore(made).ids()]
    (tmp_path / "boxes.jsonl").write_text("\n".join(lines), "utf-8")
    given = tmp_path / "given"
    extract(pictures.photos, given, boxes=tmp_path / "boxes.jsonl", backbone=f"python:{models}:colour", device="cpu")
    mixed = [word for store in (made, given) for word in ("--store", store, "--captions", pictures.captions)]
    run = ("--steps", 1, "--device", "cpu")
    alone = ("--system", "visualbert", *tiny_sizes("visualbert"), "--set", "sampling.text_form=one_caption")
    ok(roibeam("pretrain", tmp_path / "run", *mixed, *run, *alone))
    other = tmp_path / "names.txt"
    other.write_text("top\nbottom\n", "utf-8")
    renamed = {"detector": f"python:{models}:boxes_alone", "backbone": f"python:{models}:colour", "vocab": other}
    extract(pictures.photos, tmp_path / "renamed", **renamed, device="cpu")
    mixed[4:] = ["--store", tmp_path / "renamed", "--captions", pictures.captions]
    result = roibeam("pretrain", tmp_path / "run2", *mixed, *run, "--system", "vilbert", *tiny_sizes("vilbert"))
    assert result.code and "have different class names" in result.err, result.err
