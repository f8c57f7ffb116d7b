"""VisualBERT's three phases for VCR on R2C's regions: what a row is told in the first two, and what goes on."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from captioned_records import FakeStore
from safetensors.torch import load_file
from tiny_commands import Cli, extract, ok

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import random_state
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.weights.families import family_names
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining, VisualBertModel, visualbert_small
from roibeam.pipelines.data.captions.captioned_store import UsableCaptions, join_task_texts
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.captions.task_texts import TaskCorpus, TaskTexts
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.data.record_regions import WHOLE_IMAGE, ImageObjects, swap_left_right
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VisualBertSampling
from roibeam.pipelines.pretraining.samples.visualbert import VisualBertSampler
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

NAMES = ("person", "dining table", "dog")
HEIGHT, WIDTH = 60, 90
BOXES = np.array([[5, 5, 40, 50], [30, 10, 80, 55], [50, 2, 70, 30]], np.float32)
CLASSES = (2, 0, 1)  # places in NAMES
# The upper left half of the first box; all of the second; the third outlines nothing.
POLYGONS: tuple[list[list[float]], ...] = ([[5, 5, 40, 5, 5, 50]], [[30, 10, 80, 10, 80, 55, 30, 55]], [])
SIZES = ("detector.base_channels=8", "detector.short_edge=48", "detector.long_edge=96")


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COCO's photos with instances and captions, VCR's with metadata and questions, and a ResNet in torchvision's
    names. Nothing may be written there."""
    folder = tmp_path_factory.mktemp("vcr")
    write_coco(folder)
    write_vcr(folder / "vcr")
    (folder / "names.txt").write_text("".join(f"{name.replace(' ', '')}\n" for name in NAMES))
    sizes = DetectorConfig(depth=50, base_channels=8, pooled_cells=7)
    expected = RegionEncoder(sizes, CONVENTIONS["r2c"]).state_dict()
    back = family_names("vlbert")
    state = random_state({name: tuple(each.shape) for name, each in expected.items()}, seed=3)
    classes = {"fc.weight": torch.zeros(10, 256), "fc.bias": torch.zeros(10)}
    torch.save({**{back[name]: each for name, each in state.items()}, **classes}, folder / "resnet50.pth")
    return folder


def write_photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))


def write_coco(folder: Path) -> None:
    images = [{"id": 9 + n, "file_name": f"c{n}.png", "height": HEIGHT, "width": WIDTH} for n in range(4)]
    annotations = []
    for image in images:
        write_photo(folder / "coco" / str(image["file_name"]), int(image["id"]))
        for box, kind, polygons in zip(BOXES.tolist(), CLASSES, POLYGONS, strict=True):
            x1, y1, x2, y2 = box
            entry = {"image_id": image["id"], "category_id": 7 * (kind + 1), "bbox": [x1, y1, x2 - x1, y2 - y1]}
            annotations.append(entry | {"id": len(annotations), "segmentation": polygons, "iscrowd": 0})
    categories = [{"id": 7 * (number + 1), "name": name} for number, name in reversed(list(enumerate(NAMES)))]
    told = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(told))
    captions = [
        {"id": 2 * place + copy, "image_id": image["id"], "caption": words}
        for place, image in enumerate(images)
        for copy, words in enumerate(("a dog on the left", f"a person at table {place}"))
    ]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))


def write_vcr(folder: Path) -> None:
    names = [NAMES[kind].replace(" ", "") for kind in CLASSES]
    for split, count in (("train", 3), ("val", 2)):
        lines = []
        for number in range(count):
            image = f"movie/{split}{number}.png"
            write_photo(folder / "vcr1images" / image, 50 + number)
            metadata = {
                "boxes": [[*box, 1.0] for box in BOXES.tolist()], "names": names, "width": WIDTH, "height": HEIGHT,
                "segms": [
                    [np.reshape(flat, (-1, 2)).tolist() for flat in polygons] for polygons in POLYGONS
                ],
            }  # fmt: skip
            (folder / "vcr1images" / image).with_suffix(".json").write_text(json.dumps(metadata))
            # The first two boxes are named by a rationale and the question.
            row = {
                "img_fn": image, "metadata_fn": image.replace(".png", ".json"), "movie": "movie", "objects": names,
                "annot_id": f"{split}-{number}", "img_id": f"{split}-{number}", "question_number": number,
                "question": ["Is", [1], "left", "?"], "answer_label": 1, "rationale_label": 2,
                "answer_choices": [["no", str(each)] for each in range(4)],
                "rationale_choices": [[[0], "is", str(each)] for each in range(4)],
            }  # fmt: skip
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def record(image_id: str, boxes: np.ndarray = BOXES, **fields: Any) -> RegionRecord:
    random = np.random.default_rng(len(image_id))
    return RegionRecord(
        image_id=image_id, height=HEIGHT, width=WIDTH, boxes=boxes,
        features=random.standard_normal((len(boxes), 6)).astype(np.float16),
        class_ids=np.zeros(len(boxes), np.uint16), class_scores=np.zeros(len(boxes), np.float32), **fields,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["coco", "vcr"])
def test_classes_and_outlines_of_a_records_regions(data: Path, kind: str) -> None:
    """By both kinds of files alike; categories are numbered by COCO's numbers, whatever order they stand in."""
    where = data / "instances.json" if kind == "coco" else data / "vcr" / "vcr1images"
    name = "c1" if kind == "coco" else "photos/movie/train1"  # its folder was named otherwise when it was extracted
    names_file = "" if kind == "coco" else str(data / "names.txt")
    objects = ImageObjects([str(where)], [name], names_file=names_file)
    assert objects.class_names == ("person", "diningtable", "dog")
    mixed = record(name, np.concatenate([BOXES[[2]], [[0, 0, 9, 9]], BOXES[[0, 1]]]).astype(np.float32))
    assert objects.classes(mixed).tolist() == [2, 0, 3, 1]
    masks = objects.masks(mixed, [WHOLE_IMAGE, 2, 3, 0, 1], 14)
    assert masks.shape == (5, 14, 14) and masks.dtype == np.float32
    assert masks[0].all() and masks[2].all() and masks[4].all()  # all of it, all of the box, no object
    assert masks[1][0].all() and masks[1][:, 0].all() and not masks[1][13, 13]  # the triangle
    assert masks[3].all() if kind == "coco" else not masks[3].any()  # no polygon: boxes alone; VCR has some such


def test_objects_of_equal_boxes_keep_their_own_classes_and_a_crowd_counts_whole(data: Path, tmp_path: Path) -> None:
    told = json.loads((data / "instances.json").read_text())
    whole = told["annotations"][0] | {"segmentation": {"counts": [0, 5, 5395], "size": [HEIGHT, WIDTH]}}
    crowd = told | {"annotations": [whole, *told["annotations"][1:]]}
    (tmp_path / "crowd.json").write_text(json.dumps(crowd))
    assert ImageObjects([str(tmp_path / "crowd.json")], ["c0"]).masks(record("c0"), [0], 14).all()
    for each in told["annotations"]:
        each["bbox"] = [1, 1, 20, 20]
    (tmp_path / "same.json").write_text(json.dumps(told))
    objects = ImageObjects([str(tmp_path / "same.json")], ["c0"])
    same = record("c0", np.array([[1, 1, 21, 21]] * 3, np.float32))
    assert objects.classes(same).tolist() == [1 + kind for kind in CLASSES]


def test_objects_that_do_not_fit_are_refused(data: Path, tmp_path: Path) -> None:
    instances, folder = str(data / "instances.json"), str(data / "vcr" / "vcr1images")
    with pytest.raises(ValueError, match=r"1 image of 2 without objects, such as 'elsewhere'.*extract took as --boxes"):
        ImageObjects([instances], ["c0", "elsewhere"])
    with pytest.raises(ValueError, match="other classes than those of the other files"):  # COCO's 80
        ImageObjects([instances, folder], ["c0", "movie/train0"])
    both = ImageObjects([instances, folder], ["c0", "movie/train0"], names_file=str(data / "names.txt"))
    assert both.classes(record("movie/train0")).tolist() == both.classes(record("c0")).tolist() == [3, 1, 2]
    (tmp_path / "names.txt").write_text("person\ndog\n")
    with pytest.raises(ValueError, match="category 'diningtable' is not among the names of"):
        ImageObjects([instances], ["c0"], names_file=str(tmp_path / "names.txt"))
    with pytest.raises(ValueError, match="no region at 3 of 3 boxes of the task"):
        both.classes(record("c0", BOXES + 5))


# What a row is told.

R2C = VisualBertSampling(told_classes=True, whole_region=True)


def small_config(vocab_size: int, width: int, classes: int) -> VisualBertConfig:
    return visualbert_small(
        vocab_size=vocab_size, region_feature_size=width, num_region_classes=classes, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip


def sampler(corpus: Corpus, rules: VisualBertSampling, objects: ImageObjects | None, classes: int) -> VisualBertSampler:
    """With a vocabulary of the corpus's words, for features of width 6."""
    texts = corpus.text(0).lines if isinstance(corpus, TaskCorpus) else [corpus.caption(0)]
    tokenizer = load_tokenizer("captions", [*texts, *texts])
    config = small_config(tokenizer.vocab_size, 6, classes)
    return VisualBertSampler(rules, tokenizer, config, num_classes=0, objects=objects)


def captioned(**fields: Any) -> Corpus:
    return Corpus(FakeStore({"c0": record("c0", **fields)}), CaptionTable(["c0"], [(0, "a dog left")]))


@pytest.fixture
def objects(data: Path) -> ImageObjects:
    return ImageObjects([str(data / "instances.json")], ["c0"])


def test_a_captions_row_has_the_whole_image_and_classes(objects: ImageObjects) -> None:
    """First the whole image, class 0, all of it inside; its feature the mean of the others, or the store's own."""
    rules = replace(R2C, text_form="one_caption", mismatched_probability=0.0)
    for own in (None, np.arange(6, dtype=np.float16)):
        corpus = captioned(image_feature=own)
        sample = sampler(corpus, rules, objects, 4).sample(corpus, 0, np.random.default_rng(0))
        assert sample.region_classes is not None and sample.region_classes.tolist() == [0, 3, 1, 2]
        assert sample.boxes.tolist() == [[0, 0, WIDTH, HEIGHT], *BOXES.tolist()]
        features = corpus.record(0).features
        np.testing.assert_array_equal(sample.features[1:].numpy(), features)
        wanted = features.astype(np.float32).mean(axis=0) if own is None else own
        np.testing.assert_allclose(sample.features[0].float(), wanted, atol=1e-3)
        assert sample.outlines is not None
        masks = sample.outlines(14)
        assert masks.shape == (4, 14, 14) and masks[0].all() and 0.3 < masks[1].mean() < 0.8 and masks[2].all()


def vcr_corpus(data: Path) -> TaskCorpus:
    store = FakeStore({f"movie/train{n}": record(f"movie/train{n}") for n in range(3)})
    texts = TaskTexts([data / "vcr" / "train.jsonl"])
    rows, _ = join_task_texts(store, texts, UsableCaptions(128), 1.0)  # type: ignore[arg-type]
    return TaskCorpus(store, rows)


def test_a_questions_row_shows_the_boxes_that_its_texts_name(data: Path) -> None:
    """Of all its texts, also those that the row does not read; the whole image before them, so words name one later."""
    corpus = vcr_corpus(data)
    told = ImageObjects([str(data / "vcr" / "vcr1images")], ["movie/train0"], names_file=str(data / "names.txt"))
    rules = replace(R2C, text_form="task_text", aligned_words="first_piece")
    for shown, classes, places in (("named", [0, 3, 1], 2), ("all", [0, 3, 1, 2], 2)):
        made = sampler(corpus, replace(rules, shown_boxes=shown), told, 4)
        sample = made.sample(corpus, 0, np.random.default_rng(0))
        assert sample.region_classes is not None and sample.region_classes.tolist() == classes
        assert len(sample.boxes) == len(sample.features) == len(classes)
        assert sample.aligned_words is not None and sample.aligned_words[places].tolist() == [2]
        assert (np.delete(sample.aligned_words, places, axis=0) == -1).all()
    kept, mirrored = corpus.text(0), corpus.reworded(swap_left_right).text(0)
    assert kept.visible == (0, 1) and mirrored.first == kept.first.replace("left", "right")


def test_rules_model_and_objects_must_fit(objects: ImageObjects) -> None:
    corpus = captioned()
    for rules, given, classes, words in (
        (R2C, None, 4, "told_classes: the classes of regions are read from --objects"),
        (R2C, objects, 0, "made for 0 classes of regions .*told_classes is true"),
        (VisualBertSampling(), None, 4, "made for 4 classes of regions .*told_classes is false"),
        (R2C, objects, 81, "made for 81 classes of regions, .* --objects has 3"),
    ):
        with pytest.raises(ValueError, match=words):
            sampler(corpus, rules, given, classes)
    for wrong in ({"shown_boxes": "named"}, {"told_classes": True, "with_regions": False}, {"object_names": "x"}):
        with pytest.raises(ValueError, match="VisualBertSampling: "):
            VisualBertSampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["", "-late-fusion"])
def test_the_recipes_are_what_they_say(end: str) -> None:
    """R2C's 2048 numbers and 128 of the class are brought to 512, of which the model's regions are made."""
    for phase in ("coco", "task"):
        recipe = RECIPES[f"visualbert-{phase}-vcr{end}"]
        assert recipe.end_to_end and recipe.on_stored and recipe.detector == "r2c-r50"
        assert recipe.encoder == {"frozen_stages": (1, 2, 3, 4), "mask_channels": 32}
        with torch.device("meta"):
            embeddings = VisualBertModel(recipe.build()).embeddings
        assert embeddings.classed is not None
        assert embeddings.classed.classes.weight.shape == (81, 128)
        assert embeddings.classed.dense.weight.shape == (512, 2048 + 128)
        assert embeddings.projection.weight.shape == (768, 512)


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    (file,) = (run / "checkpoints").glob("*/model/model.safetensors")
    return {name.replace("model.", ""): each for name, each in load_file(file).items()}


@pytest.fixture(scope="module")
def stores(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of R2C's features: of torchvision's file, at the boxes of COCO's instances and of VCR's metadata."""
    folder = tmp_path_factory.mktemp("stores")
    vcr = data / "vcr"
    lines = "".join((vcr / f"{split}.jsonl").read_text() for split in ("train", "val"))
    (folder / "all.jsonl").write_text(lines)
    network = ("--detector", "r2c-r50", "--weights", data / "resnet50.pth", *settings(*SIZES), "--workers", 1)
    for source, out, options in (
        (data / "coco", "coco", ("--boxes", data / "instances.json")),
        (folder / "all.jsonl", "vcr", ("--photos", vcr / "vcr1images", "--boxes", vcr / "vcr1images")),
    ):
        extract(source, folder / out, *options, *network)
    return folder


def phases(data: Path, stores: Path, *options: object) -> list[object]:
    """Both phases of the toy of the recipe, a step each."""
    vcr = data / "vcr"
    return [
        "--recipe", "visualbert-task-vcr", "--toy", "--steps", 1, "--batch-size", 4, "--captions",
        data / "captions.json", "--task-text", vcr / "train.jsonl", "--objects", data / "instances.json", "--objects",
        vcr / "vcr1images", *settings("train.accumulation=1", f"sampling.object_names={data / 'names.txt'}"),
        "--stage", f"--store {stores / 'coco'}", "--stage", f"--store {stores / 'vcr'}", *options,
    ]  # fmt: skip


def finetuned(data: Path, stores: Path, start: Path, *options: object) -> list[object]:
    return [
        "--task", "vcr", "--recipe", "visualbert-vcr-answer", "--from", start, "--store", stores / "vcr", "--data",
        data / "vcr", "--steps", 1, "--batch-size", 2, "--learning-rate", 1e-12, *options,
        *settings("train.accumulation=1", f"vcr.object_names={data / 'names.txt'}"),
    ]  # fmt: skip


_GOES_ON = ("classed.classes.weight", "classed.dense.weight", "classed.dense.bias", "embeddings.projection.weight")


def assert_goes_on(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], *more: str) -> None:
    for end in (*_GOES_ON, *more):
        (name,) = (each for each in before if each.endswith(end))
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-9, msg=name)


def test_three_phases_on_stored_features(roibeam: Cli, data: Path, stores: Path, tmp_path: Path) -> None:
    """What takes classes, and the projection, are those of the first phase in the second, and go on into the task."""
    ok(roibeam("pretrain", tmp_path / "run", *phases(data, stores)))
    configs = [json.loads((tmp_path / f"run/stage-{n}/config.json").read_text())["task"] for n in (1, 2)]
    assert [each["model"]["num_region_classes"] for each in configs] == [4, 4]
    assert configs[1]["sampling"]["shown_boxes"] == "named" and configs[0]["sampling"]["whole_region"]
    # A later phase takes over what the first one drew: of a step at that rate nothing is far from it.
    first, second = (weights_of(tmp_path / f"run/stage-{n}") for n in (1, 2))
    apart = {end: max(float((first[n] - second[n]).abs().max()) for n in first if n.endswith(end)) for end in _GOES_ON}
    assert all(0 < each < 0.02 for each in apart.values()), apart
    ok(roibeam("finetune", tmp_path / "tuned", *finetuned(data, stores, tmp_path / "run" / "stage-2")))
    assert_goes_on(second, weights_of(tmp_path / "tuned"))
    # The same classes in another order are another thing.
    (tmp_path / "other.txt").write_text("dog\nperson\ndiningtable\n")
    others = settings(f"vcr.object_names={tmp_path / 'other.txt'}")
    wrong = roibeam("finetune", tmp_path / "no", *finetuned(data, stores, tmp_path / "run/stage-2"), *others)
    assert wrong.code == 1 and "was trained with other classes of objects" in wrong.err
    captions = ("--store", stores / "coco", "--captions", data / "captions.json")
    asked = roibeam("evaluate", tmp_path / "run/stage-1", *captions)
    assert asked.code == 1 and "reads the class of each region (num_region_classes 4)" in asked.err


def test_three_phases_through_the_network(roibeam: Cli, data: Path, stores: Path, tmp_path: Path) -> None:
    """The last stage, outlines and classes are trained along from the first phase on, the stages before are fixed until
    the task; each phase goes on with all of it."""
    encoder = ("--end-to-end", "--detector", "r2c-r50", "--weights", data / "resnet50.pth", *settings(SIZES[0]))
    ok(roibeam("pretrain", tmp_path / "run", *phases(data, stores, *encoder)))
    config = json.loads((tmp_path / "run/stage-2/config.json").read_text())["task"]
    described = config["model"]["region_encoder"]
    assert described["mask_channels"] == 32 and described["frozen_stages"] == [1, 2, 3, 4]
    assert config["photos"]["fixed_size"] and not config["photos"]["flip"]
    theirs = torch.load(data / "resnet50.pth")
    first, second = (weights_of(tmp_path / f"run/stage-{n}") for n in (1, 2))
    for state in (first, second):
        fixed = state["region_encoder.backbone.res4.5.conv3.weight"]
        assert torch.equal(fixed, theirs["layer3.5.conv3.weight"])
        assert torch.equal(state["region_encoder.backbone.stem.conv1.weight"], theirs["conv1.weight"])
    last = "region_encoder.roi_heads.res5.2.conv3.weight"
    assert not torch.equal(first[last], theirs["layer4.2.conv3.weight"]) and not torch.equal(first[last], second[last])
    ok(roibeam("finetune", tmp_path / "tuned", *finetuned(data, stores, tmp_path / "run" / "stage-2"), "--end-to-end"))
    trained = json.loads((tmp_path / "tuned/config.json").read_text())["task"]["model"]["region_encoder"]
    assert trained["frozen_stages"] == []
    assert_goes_on(second, weights_of(tmp_path / "tuned"), "mask_conv.weight", "res5.2.conv3.weight")


def test_outlines_reach_the_network_as_the_photo_is_shown(data: Path, stores: Path) -> None:
    """In the places of their regions, mirrored with the photo; a photo fills the frame that all have."""
    told = ImageObjects([str(data / "instances.json")], ["c0"])
    sizes = DetectorConfig(depth=50, base_channels=8, pooled_cells=7, short_edge=48, long_edge=96)
    encoder = RegionEncoder(sizes, CONVENTIONS["r2c"], mask_channels=4)
    with FeatureStore(stores / "coco") as opened:
        rows = CaptionTable(["c0"], [(0, "a dog left")])
        corpus = Corpus(opened, rows)
        tokenizer = load_tokenizer("captions", ["a dog left"] * 2)
        config = small_config(tokenizer.vocab_size, 256, 4)
        rules = replace(R2C, text_form="one_caption", mismatched_probability=0.0)
        made = VisualBertSampler(rules, tokenizer, config, num_classes=0, objects=told)
        joint = EndToEndModel(VisualBertForPreTraining(config), encoder, EndToEndChoices())
        sizes_of_rows = np.array([[HEIGHT, WIDTH, 3]])
        seen = {}
        for seed in range(8):
            photos = TaskPhotos(RecordPhotos(opened, ["c0"], None), sizes_of_rows, PhotoRules(fixed_size=True))
            task = EndToEndTask(joint, corpus, made, photos, DataConfig(batch_size=1), pad_id=0, seed=seed)
            images = next(task.batches(0, rank=0, num_ranks=1)).images
            assert images.pixels.shape[2:] == (48, 96) and images.cell_weights is not None
            assert task.worst_batch().batch.images.pixels.shape[2:] == (48, 96)
            seen[bool(images.cell_weights[0, 1, 0, -1] > images.cell_weights[0, 1, -1, 0])] = images.cell_weights
        plain, mirrored = seen[False], seen[True]
        wanted = torch.from_numpy(told.masks(opened["c0"], [WHOLE_IMAGE, 0, 1, 2], 14))[None]
        assert torch.equal(plain, wanted) or torch.equal(mirrored, wanted)
        assert torch.equal(plain.flip(-1), mirrored)


def test_what_does_not_fit_is_one_line(roibeam: Cli, data: Path, stores: Path, tmp_path: Path) -> None:
    coco = ("--store", stores / "coco", "--captions", data / "captions.json", "--steps", 1)
    given = ("--objects", data / "instances.json")
    for options, words in (
        (("--recipe", "visualbert-coco-vcr", "--toy"), "name it with --objects"),
        (("--system", "vilbert", *given), "ViLBERT reads no classes and outlines of regions"),
        (("--system", "visualbert", *given), "--objects: nothing reads it"),
        (("--system", "visualbert", "--objects", data / "nowhere.json"), "nowhere.json"),
        (
            ("--recipe", "visualbert-coco-vcr", "--toy", *given, "--set", "data.validation_retrieval=2"),
            "a search does not read classes of regions",
        ),
    ):
        refused = roibeam("pretrain", tmp_path / "run", *coco, *options)
        assert refused.code == 1 and words in refused.err, refused.err


def test_a_store_that_was_begun_by_other_conventions_goes_on_so(roibeam: Cli, data: Path, tmp_path: Path) -> None:
    """`--detector r2c-r50` alone computed as hf, before it was R2C."""
    for number in (0, 1):
        write_photo(tmp_path / "photos" / f"c{number}.png", number)
        begun = () if number else ("--conventions", "hf")
        network = ("--detector", "r2c-r50", "--weights", data / "resnet50.pth", *settings(*SIZES), "--workers", 1)
        options = ("--boxes", data / "instances.json", *network, *begun)
        ok(roibeam("extract", tmp_path / "photos", tmp_path / "store", *options))
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest["config"]["conventions"] == "hf" and manifest["num_records"] == 2


def older(run: Path) -> None:
    """Makes it a run of before regions were told classes: its file names no such rule, and no recipe."""
    config = json.loads((run / "config.json").read_text())
    for name in ("told_classes", "object_names", "whole_region", "shown_boxes"):
        del config["task"]["sampling"][name]
    del config["recorded"]["recipe"]
    (run / "config.json").write_text(json.dumps(config))
    (run / "SHA256SUMS").unlink()


@pytest.mark.parametrize("is_old", [True, False], ids=["of before", "of today"])
def test_a_run_of_other_rules_goes_on(is_old: bool, roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    """To the same weights, and it says so. By another recipe, or where a rule is set, it is refused as ever."""
    files = ("--store", store[0], "--captions", store[1], "--batch-size", 4, "--device", "cpu", "--toy")
    same = ("train.accumulation=1", "train.schedule=constant", "sampling.text_form=one_caption")
    of_it = (*files, *settings(*same), "--recipe")
    without = (*of_it, "visualbert-coco-vcr", *settings("sampling.told_classes=false", "sampling.whole_region=false"))
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert not is_old or roibeam("pretrain", whole, *without, "--steps", 2).code == 0
    assert roibeam("pretrain", run, *without, "--steps", 1).code == 0
    if is_old:
        older(run)
    more = ("--steps", 2, "--set", "sampling.word_probability=0.3")
    refused = roibeam("pretrain", run, *of_it, "visualbert-coco-vcr", *more)
    assert refused.code != 0 and "word_probability" in refused.err
    if not is_old:
        refused = roibeam("pretrain", run, *of_it, "visualbert-coco-nlvr2", "--steps", 2)
        assert refused.code != 0 and "max_regions" in refused.err
    done = ok(roibeam("pretrain", run, *of_it, "visualbert-coco-vcr", "--steps", 2))
    said = "sampling.told_classes stays False, as this run began; visualbert-coco-vcr has True now"
    assert said in done.err.replace("\n", " ")
    if is_old:
        first, second = (
            load_file(each / "checkpoints" / "step-00000002" / "model" / "model.safetensors") for each in (whole, run)
        )
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
