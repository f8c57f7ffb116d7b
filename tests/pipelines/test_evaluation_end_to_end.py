"""Checkpoints with a region encoder, evaluated: figures against numbers made by hand, photo by photo."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from end_to_end_examples import FEATURES, SIZES, awake, encoder, imagebert, vilbert, visualbert
from photo_store import CAPTIONS, HEIGHTS_WIDTHS, NUM_CLASSES, PhotoStore, image_id
from soak_share import some
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, ok, one_line

from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_results import read_results
from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.load_for_evaluation import PhotoFeatures
from roibeam.pipelines.data.batches.image_batch import photo_inputs
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENIZER = load_tokenizer("captions", CAPTIONS * 2)
OURS: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "max_position_embeddings": 40}
CLASSES = {"region_target_size": NUM_CLASSES + 1}
BLANK = EndToEndChoices()


def vlbert() -> VLBertForPreTraining:
    heads = {"with_pooler": True, "with_relationship_head": True, "masked_appearance": "pixels"}
    sizes = {"num_region_labels": NUM_CLASSES + 1, "coordinate_embedding_size": 16}
    return VLBertForPreTraining(VLBertConfig(**(SIZES | OURS | heads | sizes)))


JOINT: dict[str, tuple[Callable[[], Any], EndToEndChoices]] = {
    "VL-BERT": (vlbert, EndToEndChoices(whole_image="box")),
    "ViLBERT": (lambda: vilbert(**OURS, **CLASSES), BLANK),
    "ViLBERT, whole photos": (lambda: vilbert(**OURS, **CLASSES), EndToEndChoices(masked_pixels="whole")),
    "ViLBERT, features": (lambda: vilbert(**OURS, region_loss="regression", region_target_size=FEATURES), BLANK),
    "ImageBERT": (lambda: imagebert(**OURS, num_region_labels=NUM_CLASSES, masked_appearance="pixels"), BLANK),
    "VisualBERT": (lambda: visualbert(**OURS), BLANK),
}


def joint_named(name: str) -> EndToEndModel:
    make, choices = JOINT[name]
    return EndToEndModel(awake(make()), encoder(), choices).eval()


def evaluate(joint: EndToEndModel, made: PhotoStore, out: Path, *, images: str | None = None, **settings: Any) -> Any:
    found = JointCheckpoint(joint.model, Path("nowhere") / "model", joint=joint)
    captions = [Caption(text, image_id(number)) for number, text in enumerate(CAPTIONS)]
    config = EvaluationConfig(**({"device": "cpu", "batch_size": 3} | settings))
    with FeatureStore(made.path) as store:
        result = evaluate_checkpoint(found, TOKENIZER, store, captions, out, config=config, images=images)
    return {figure.name: figure for figure in result.figures}


def by_hand(joint: EndToEndModel, made: PhotoStore, samples: EvaluationSamples, sample: Any) -> Any:
    """The model's own scores of one row, on its photo with the row's masked regions hidden."""
    batch = samples.batch([sample])
    pixels = cv2.imread(str(made.photo(batch.sample_ids[0])))
    boxes, masked = batch.region_boxes[0].numpy(), batch.masked_regions[0].numpy()
    inputs = photo_inputs([pixels], [boxes], [masked], joint.region_encoder, joint.choices)
    with torch.no_grad():
        whole = joint.with_features(dataclasses.replace(batch, **inputs.regions), inputs.images)
        return whole, joint.model.encode(whole)


@pytest.mark.parametrize("name", some(JOINT, tuple(JOINT)[:2]))
def test_masked_figures_are_those_of_the_encoder_on_blanked_photos(name: str, made: PhotoStore, tmp_path: Path) -> None:
    joint = joint_named(name)
    figures = evaluate(joint, made, tmp_path, retrieval=False, seed=5)
    sums: dict[str, list[float]] = {}
    with FeatureStore(made.path) as store:
        corpus = Corpus(store, CaptionTable(list(store.ids()), made.rows()))
        samples = EvaluationSamples(joint.model.config, TOKENIZER, num_classes=NUM_CLASSES)
        for row in range(8):
            sample = samples.masked(corpus, row, np.random.default_rng([3, 5, row]))
            batch, output = by_hand(joint, made, samples, sample)
            scored = joint.model.score(batch, output)
            for term, found in {**scored.losses, **scored.metrics}.items():
                if not term.startswith("matching"):
                    total = sums.setdefault(term, [0.0, 0.0])
                    total[0] += found.total.item()
                    total[1] += int(found.count)
    assert sums.keys() == {each for each in figures if each.startswith("masked")} and len(sums) >= 2
    for term, (total, count) in sums.items():
        assert figures[term].items == count
        assert figures[term].value == pytest.approx(total / count, rel=1e-4, abs=1e-6), term


@pytest.mark.parametrize("name", ["VL-BERT", "ViLBERT"])
def test_retrieval_is_that_of_pairs_one_by_one(name: str, made: PhotoStore, tmp_path: Path) -> None:
    joint = joint_named(name)
    figures = evaluate(joint, made, tmp_path)
    scores = np.zeros((8, 8))
    with FeatureStore(made.path) as store:
        corpus = Corpus(store, CaptionTable(list(store.ids()), made.rows()))
        samples = EvaluationSamples(joint.model.config, TOKENIZER, num_classes=NUM_CLASSES)
        for text, image in np.ndindex(8, 8):
            _, output = by_hand(joint, made, samples, samples.pair(corpus, text, image))
            scores[text, image] = joint.model.match_log_odds(output).item()
    own = np.diag(scores)
    ranks = {"text_to_image": (scores >= own[:, None]).sum(axis=1), "image_to_text": (scores >= own[None]).sum(axis=0)}
    assert len(np.unique(scores.round(6))) > 30  # the pairs differ
    for direction, found in ranks.items():
        for cut in (1, 5):
            assert figures[f"{direction}_r{cut}"].value == pytest.approx(np.mean(found <= cut)), direction
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]
    page = (tmp_path / "report.html").read_text()
    assert " end to end, evaluated on " in page and "asks by the training rules of its system" in page


def test_batches_and_what_was_kept_change_no_feature(made: PhotoStore, tmp_path: Path) -> None:
    """Whole photos are measured once; masked ones each time, alone."""
    joint = joint_named("VL-BERT")
    one, other = (evaluate(joint, made, tmp_path / str(size), batch_size=size) for size in (1, 8))
    for name, figure in one.items():
        assert figure.value == pytest.approx(other[name].value, rel=1e-4, abs=1e-6), name
    calls: list[str] = []
    with FeatureStore(made.path) as store:
        photos = RecordPhotos(store, store.ids())
        read = photos.read
        photos.read = lambda place: (calls.append(place.image_id), read(place))[1]  # type: ignore[method-assign]
        features = PhotoFeatures(joint, photos, scratch=tmp_path, device=torch.device("cpu"))
        samples = EvaluationSamples(joint.model.config, TOKENIZER, num_classes=NUM_CLASSES, features=features)
        image = samples.images([store[image_id(2)]])
        again = samples.images([store[image_id(2)]])
        corpus = Corpus(store, CaptionTable(list(store.ids()), made.rows()))
        hidden = samples.batch([samples.masked(corpus, 2, np.random.default_rng(number)) for number in range(6)])
    assert torch.equal(image.region_features, again.region_features)
    assert torch.equal(image.whole_image_features, again.whole_image_features)
    masked = hidden.masked_regions.any(dim=1)
    assert int(masked.sum()) > 1 and calls == [image_id(2)] * (1 + int(masked.sum()))
    for row, has_masked in enumerate(masked.tolist()):
        assert torch.equal(hidden.region_features[row], image.region_features[0]) != has_masked


def test_what_stands_under_masked_boxes_reaches_no_feature(made: PhotoStore, tmp_path: Path) -> None:
    """Blanked before the resize, a photo may show anything in its masked regions."""
    make, _ = JOINT["VL-BERT"]
    joint = EndToEndModel(awake(make()), encoder(), EndToEndChoices("blank", "before_resize", "box")).eval()
    with FeatureStore(made.path) as store:
        corpus = Corpus(store, CaptionTable(list(store.ids()), made.rows()))
        plain = EvaluationSamples(joint.model.config, TOKENIZER, num_classes=NUM_CLASSES)
        row = plain.masked(corpus, 5, np.random.default_rng(1))
        assert row.sample.masked.any() and not row.sample.masked.all()
        for number in range(len(HEIGHTS_WIDTHS)):
            pixels = cv2.imread(str(made.photo(image_id(number))))
            if number == 5:
                for x1, y1, x2, y2 in row.sample.boxes[row.sample.masked].astype(int).tolist():
                    pixels[y1 : y2 + 1, x1 : x2 + 1] = 255 - pixels[y1 : y2 + 1, x1 : x2 + 1]
            cv2.imwrite(str(tmp_path / f"{image_id(number)}.png"), pixels)
        found = []
        for folder in (None, str(tmp_path)):
            photos = RecordPhotos(store, store.ids(), folder)
            features = PhotoFeatures(joint, photos, scratch=tmp_path, device=torch.device("cpu"))
            found.append([features(plain.batch([each])) for each in (row, plain.pair(corpus, 5, 5))])
    (hidden, whole), (hidden_again, whole_again) = found
    assert torch.equal(hidden.region_features, hidden_again.region_features)
    assert torch.equal(hidden.whole_image_features, hidden_again.whole_image_features)
    assert not torch.equal(whole.region_features, whole_again.region_features)  # the test would see a leak


# --- by the command line ---


def test_a_run_end_to_end_is_evaluated(roibeam: Cli, made: PhotoStore, tmp_path: Path) -> None:
    given = ("--store", made.path, "--captions", made.captions)
    ok(roibeam("pretrain", tmp_path / "run", *given, *TINY_ENCODER, *TINY_JOINT, "--device", "cpu"))
    asked = ("evaluate", tmp_path / "run", *given, "--device", "cpu", "--out")
    done = ok(roibeam(*asked, tmp_path / "e"))
    assert "8 captions of 8 images" in done.out and "masked regions, right" in done.out
    results = read_results(tmp_path / "e")
    assert results["checkpoint"]["end_to_end"]["masked_pixels"] == "blank" and results["checkpoint"]["step"] == 2
    with pytest.raises(ValueError, match="roibeam probe, evaluate, convert and pretrain --from-run take it"):
        load_model(str(tmp_path / "run"))
    ok(roibeam(*asked, tmp_path / "again", "--photos", made.photos))
    assert read_results(tmp_path / "again")["images"] == results["images"]
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "other.jpg").touch()
    assert "8 images of 8 without a photo" in one_line(roibeam(*asked, tmp_path / "no", "--photos", tmp_path / "few"))
    assert not (tmp_path / "no").exists()
    ok(roibeam("pretrain", tmp_path / "stored", *given, *TINY_JOINT, "--device", "cpu"))
    refused = roibeam("evaluate", tmp_path / "stored", *asked[2:], tmp_path / "no", "--photos", made.photos)
    assert "reads stored features; leave --photos out" in one_line(refused)
    assert json.loads((tmp_path / "e" / "results.json").read_text())["settings"]["batch_size"] == 64
