"""Held-out evaluation of every model: figures against numbers made by hand, and what must not change them."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from captioned_records import FakeStore
from evaluated_models import MODELS, SIZES, VILBERT, WITHOUT_MATCH, WITHOUT_REGIONS, build
from soak_share import some

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.task_heads import MatchModel
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig
from roibeam.pipelines.analysis.evaluation.evaluation_results import compare_results, read_results
from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import evaluation_set, masked_measures, matching_measures
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.finetuning.run.pair_scores import JointPairs, pair_scorer
from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.run_folder.training_data import known_keys, trained_among, write_trained_images

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, CLASSES = 12, ("cat", "dog", "hat")
WORDS = ("a cat", "the dog", "a red hat", "two cats", "a dog in a hat", "the cat on the hat", "a hat on a dog")
CPU = torch.device("cpu")
NAMES = [name for name in MODELS if name not in WITHOUT_MATCH]


def make_record(image_id: str, seed: int, count: int = 5) -> RegionRecord:
    generator = np.random.default_rng(seed)
    corner = generator.uniform(0, 80, (count, 2))
    probabilities = generator.dirichlet(np.full(len(CLASSES) + 1, 0.3), count).astype(np.float16)
    return RegionRecord(
        image_id=image_id,
        height=200,
        width=160,
        boxes=np.concatenate([corner, corner + 40], axis=1).astype(np.float32),
        features=generator.standard_normal((count, WIDTH)).astype(np.float16),
        class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
        class_scores=generator.random(count).astype(np.float32),
        class_distribution=probabilities,
    )


def make_store(count: int = 6) -> FeatureStore:
    records = (make_record(f"image-{number}", number, 3 + number % 3) for number in range(count))
    store = FakeStore((record.image_id, record) for record in records)
    store.vocabulary = {"classes": list(CLASSES), "attributes": None}
    return cast(FeatureStore, store)


def make_captions(count: int = 6) -> list[Caption]:
    """Two for each image, three for the first; some texts belong to several images."""
    texts = [(number, WORDS[(number * 3 + again) % len(WORDS)]) for number in range(count) for again in range(2)]
    return [Caption(text, f"image-{number}") for number, text in [*texts, (0, "a red hat")]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("captions", [*WORDS, *WORDS])


def evaluate(model: Any, tokenizer: Any, out: Path, *, store: Any = None, captions: Any = None, **settings: Any) -> Any:
    found = ModelCheckpoint(model, Path("nowhere") / "model")
    config = EvaluationConfig(**({"device": "cpu", "batch_size": 4} | settings))
    given = (store or make_store(), captions or make_captions(), out)
    result = evaluate_checkpoint(found, tokenizer, *given, config=config)
    return result, {figure.name: figure for figure in result.figures}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_from_end_to_end(name: str, tokenizer: Any, tmp_path: Path) -> None:
    result, figures = evaluate(build(name), tokenizer, tmp_path)
    assert (result.num_captions, result.num_images) == (13, 6)
    assert 0 < figures["masked_words"].chance < math.log(60) and figures["masked_words"].items > 0
    assert ("masked_regions" in figures) == (name not in WITHOUT_REGIONS)
    if name in WITHOUT_MATCH:
        assert "image_to_text_r1" not in figures and "no match head" in result.remarks[-1]
        return
    assert figures["matching"].items == figures["matching_accuracy"].items == 26
    assert figures["matching_accuracy"].chance == 0.5
    for figure in figures.values():
        assert figure.value is not None and figure.low is not None and figure.high is not None
        assert figure.low <= figure.value <= figure.high, figure
    assert figures["text_to_image_r5"].chance == pytest.approx(5 / 6) and figures["text_to_image_r1"].items == 13
    written = read_results(tmp_path)
    assert written["figures"]["image_to_text_r1"]["value"] == figures["image_to_text_r1"].value
    assert written["checkpoint"]["model"] == type(build(name)).__name__ and len(written["checkpoint"]["weights"]) == 64
    assert written["store"]["feature_space"] == "imported:fake" and len(written["images"]["ids"]) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]


@pytest.mark.parametrize("name", some(MODELS, ("VL-BERT, paper", "ViLBERT", "VisualBERT", "InterBERT")))
def test_two_runs_agree_in_every_bit_and_batches_do_not_matter(name: str, tokenizer: Any, tmp_path: Path) -> None:
    results, few = [], {"store": make_store(4), "captions": make_captions(4)}
    for folder, batch_size in (("a", 4), ("b", 4), ("c", 1), ("d", 50)):
        evaluate(build(name), tokenizer, tmp_path / folder, batch_size=batch_size, **few)
        results.append(read_results(tmp_path / folder))
    first, again, *others = (each["images"]["measures"] for each in results)
    assert first == again and results[0]["figures"] == results[1]["figures"]
    for other in others:
        assert other.keys() == first.keys()
        for measure in first:
            assert other[measure]["counts"] == first[measure]["counts"]
            # Kernels sum in another order for other shapes.
            np.testing.assert_allclose(other[measure]["sums"], first[measure]["sums"], rtol=1e-4, atol=1e-5)
            if "accuracy" in measure or measure.endswith(("_r1", "_r5", "_r10")):
                assert other[measure]["sums"] == first[measure]["sums"]


def scores_one_by_one(model: Any, samples: EvaluationSamples, corpus: Any, rows: Any, records: Any) -> np.ndarray:
    """Every caption with every image, a pair at a time, by the model's whole forward pass."""
    scores = np.zeros((len(rows), len(records)))
    with torch.inference_mode():
        for place, row in enumerate(rows):
            for number, image_row in enumerate(records):
                batch = samples.batch([samples.pair(corpus, int(row), int(image_row))])
                scores[place, number] = float(model.match_log_odds(model.encode(batch)))
    return scores


# What a model scores knows nothing of folds: two are enough, one that reads texts by themselves and one that does not.
IN_FOLDS = [("ViLBERT", 2), ("VL-BERT, paper", 2)]
WHOLE = [("VL-BERT, paper", 1), ("ViLBERT", 1), ("ImageBERT", 1), ("InterBERT", 1)]


@pytest.mark.parametrize("case", some(itertools.product(NAMES, (1, 2)), [*WHOLE, *IN_FOLDS]), ids=str)
def test_retrieval_is_that_of_pairs_one_by_one(case: tuple[str, int], tokenizer: Any, tmp_path: Path) -> None:
    name, folds = case
    store, captions, model = make_store(), make_captions(), build(name)
    _, figures = evaluate(model, tokenizer, tmp_path, folds=folds)
    ids = list(cast(Any, store))
    image_of = np.array([ids.index(str(caption.name)) for caption in captions])
    corpus = Corpus(store, CaptionTable(ids, zip(image_of, (caption.text for caption in captions), strict=True)))
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    first_row = [int(np.flatnonzero(image_of == image)[0]) for image in range(6)]
    scores = scores_one_by_one(model, samples, corpus, range(13), first_row).astype(np.float32)
    text_to_image, image_to_text = [], []
    for images in np.array_split(np.arange(6), folds):
        rows = np.flatnonzero(np.isin(image_of, images))
        for row in rows:
            others = [scores[row, other] >= scores[row, image_of[row]] for other in images if other != image_of[row]]
            text_to_image.append(1 + sum(others))
        for image in images:
            best = max(scores[row, image] for row in rows if image_of[row] == image)
            image_to_text.append(1 + sum(scores[row, image] >= best for row in rows if image_of[row] != image))
    for direction, ranks in (("text_to_image", text_to_image), ("image_to_text", image_to_text)):
        for cut in (1, 5, 10):
            assert figures[f"{direction}_r{cut}"].value == pytest.approx(np.mean(np.array(ranks) <= cut))
        assert figures[f"{direction}_median_rank"].value == int(np.median(ranks))


def test_vilbert_reads_a_text_once_and_says_the_same(tokenizer: Any) -> None:
    model = build("ViLBERT")
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    texts = samples.texts([samples.text(words).ids for words in WORDS])
    quick, whole = pair_scorer(MatchModel(model)), JointPairs(MatchModel(model))
    assert type(quick) is not JointPairs
    every = torch.arange(len(WORDS)), torch.zeros(len(WORDS), dtype=torch.long)
    with torch.inference_mode():
        read = quick.read_texts(texts)
        for number in range(3):
            image = samples.images([make_record("x", number, 4 + number)])
            found = quick.score(read, quick.read_images(image), *every)
            expected = whole.score(whole.read_texts(texts), whole.read_images(image), *every)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert len(set(found.tolist())) == len(WORDS)


def test_a_model_that_always_says_the_same_is_last(tokenizer: Any, tmp_path: Path) -> None:
    """With its match head at zero, all scores are equal, and no figure is better than chance."""
    model = build("VisualBERT")
    with torch.no_grad():
        model.match_head.weight.zero_()
        model.match_head.bias.zero_()
    captions = [Caption(WORDS[number], f"image-{number}") for number in range(6)]
    _, figures = evaluate(model, tokenizer, tmp_path, captions=captions)
    assert figures["text_to_image_median_rank"].value == figures["image_to_text_median_rank"].value == 6
    assert figures["text_to_image_r5"].value == figures["image_to_text_r5"].value == 0


BY_HEART = ("VL-BERT, paper", "ViLBERT", "single stream", "VisualBERT", "ImageBERT", "InterBERT")


@pytest.mark.parametrize("name", some(BY_HEART, ["VisualBERT", "InterBERT"]))
def test_pairs_that_were_learned_by_heart_are_found(name: str, tokenizer: Any, tmp_path: Path) -> None:
    """From the matching loss to the rank: a sign that is wrong anywhere puts the right ones last."""
    captions = [Caption(WORDS[number], f"image-{number}") for number in range(3)]
    torch.manual_seed(0)
    dropout = {field: 0.0 for field in vars(MODELS[name]().config) if field.endswith("dropout")}
    model = MODELS[name]()
    model = type(model)(type(model.config).from_dict(model.config.to_diff_dict() | dropout)).train()
    store = make_store(3)
    ids = list(cast(Any, store))
    corpus = Corpus(store, CaptionTable(ids, enumerate(caption.text for caption in captions)))
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    batch = samples.batch([samples.pair(corpus, row, image) for row in range(3) for image in range(3)])
    assert batch.match_labels is not None
    weight = torch.where(batch.match_labels == 1, 2.0, 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(400):
        odds = model.match_log_odds(model.encode(batch))
        wanted = batch.match_labels.float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.1:
            break
    _, figures = evaluate(model.eval(), tokenizer, tmp_path, store=store, captions=captions)
    assert figures["text_to_image_r1"].value == figures["image_to_text_r1"].value == 1
    assert figures["matching_accuracy"].value == 1 and figures["matching"].value < 0.3


def masked_batch(model: Any, tokenizer: Any, *, draws: int = 1, **options: Any) -> tuple[VLBatch, EvaluationSamples]:
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3, **options)
    chosen = chosen_rows()
    rows = [
        samples.masked(chosen.corpus, row, np.random.default_rng([7, draw, row]))
        for draw in range(draws)
        for row in range(13)
    ]
    return samples.batch(rows), samples


def chosen_rows(**options: Any) -> Any:
    store, ids = make_store(), [f"image-{number}" for number in range(6)]
    captions = make_captions()
    rows = [(ids.index(str(caption.name)), caption.text) for caption in captions]
    return evaluation_set(Corpus(store, CaptionTable(ids, rows)), **options)


def test_what_is_predicted_is_hidden_and_nothing_else(tokenizer: Any) -> None:
    batch, _ = masked_batch(build("ViLBERT"), tokenizer, draws=30)
    assert batch.text_labels is not None and batch.region_target_mask is not None and batch.region_targets is not None
    labelled = batch.text_labels != IGNORE_INDEX
    assert labelled.sum() > 100 and torch.equal(labelled, batch.text_ids == tokenizer.mask_id)
    assert torch.equal(batch.region_target_mask, batch.masked_regions) and batch.masked_regions.any()
    assert len(batch.region_targets) == batch.masked_regions.sum() and (batch.region_targets.sum(-1) > 0.5).all()
    chosen = chosen_rows()
    for row in range(13):
        unmasked = torch.where(labelled[row], batch.text_labels[row], batch.text_ids[row])[batch.text_mask[row]]
        assert unmasked.tolist() == tokenizer.encode(chosen.corpus.caption(row)).ids.tolist()


def test_targets_of_a_model_that_counts_background_first(tokenizer: Any) -> None:
    last, _ = masked_batch(build("ViLBERT"), tokenizer)
    first, _ = masked_batch(build("ViLBERT"), tokenizer, background="first")
    assert last.region_targets is not None and first.region_targets is not None
    assert torch.equal(first.region_targets[..., 1:], last.region_targets[..., :-1])
    assert torch.equal(first.region_targets[..., 0], last.region_targets[..., -1])
    with pytest.raises(ValueError, match="predicts no classes of regions; leave --background first out"):
        EvaluationSamples(build("VisualBERT").config, tokenizer, num_classes=3, background="first")
    with pytest.raises(ValueError, match="one more than the store has classes: one is background; give first or last"):
        EvaluationSamples(build("ViLBERT").config, tokenizer, num_classes=3, background="none")
    with pytest.raises(ValueError, match="--background 'middle': choose one of first, last, none"):
        EvaluationConfig(background="middle")


def test_the_best_regions_are_kept(tokenizer: Any) -> None:
    record = make_record("a", 3, 5)
    samples = EvaluationSamples(build("ViLBERT").config, tokenizer, num_classes=3, max_regions=2)
    kept = sorted(np.argsort(-record.class_scores)[:2])
    np.testing.assert_array_equal(samples.images([record]).region_boxes[0].numpy(), record.boxes[kept])


def test_figures_are_means_over_what_was_predicted(tokenizer: Any) -> None:
    """Loss and accuracy of words, in one batch, straight from the logits; chance from the labels."""
    model, chosen = build("ImageBERT"), chosen_rows()
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    measures = masked_measures(model, samples, chosen, seed=4, batch_size=5, device=CPU)
    named = {measure.name: measure for measure in measures}
    rows = [samples.masked(chosen.corpus, row, np.random.default_rng([3, 4, row])) for row in range(13)]
    batch = samples.batch(rows)
    assert batch.text_labels is not None
    chosen_words = batch.text_labels != IGNORE_INDEX
    labels = batch.text_labels[chosen_words]
    with torch.inference_mode():
        logits = model.word_logits(model.encode(batch).text_states[chosen_words])
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    assert named["masked_words"].mean == pytest.approx(loss, rel=1e-5)
    assert named["masked_word_accuracy"].mean == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    assert named["masked_word_accuracy"].chance == pytest.approx(int(labels.bincount().max()) / len(labels))
    shares = labels.bincount()[labels.bincount() > 0] / len(labels)
    assert named["masked_words"].chance == pytest.approx(float(-(shares * shares.log()).sum()))
    of_image = np.bincount(chosen.image_of_caption, chosen_words.sum(1).numpy(), minlength=6)
    assert named["masked_words"].counts.tolist() == of_image.tolist()


def test_words_that_the_tokenizer_does_not_know_are_told(tokenizer: Any, tmp_path: Path) -> None:
    """A caption of another language is all [UNK], which a model is right about."""
    told, _ = evaluate(build("ImageBERT"), tokenizer, tmp_path / "known")
    assert not [remark for remark in told.remarks if "does not know" in remark]
    other = [caption._replace(text="собака бежит") for caption in make_captions()]
    found, _ = evaluate(build("ImageBERT"), tokenizer, tmp_path / "other", captions=other)
    assert any("does not know 100 % of the pieces" in remark for remark in found.remarks), found.remarks


def test_a_model_that_knows_the_frequencies_alone_is_at_chance(tokenizer: Any) -> None:
    """Losses of classes, as of words: what guessing all alike reaches is worse."""
    for name in ("VL-BERT", "ViLBERT", "ImageBERT"):
        model = build(name)
        heads = [getattr(model, each, None) for each in ("masked_region_head", "region_class_head")]
        (head,) = (each for each in heads if each is not None)
        samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
        chosen = chosen_rows()
        rows = [samples.masked(chosen.corpus, int(row), np.random.default_rng([3, 0, int(row)])) for row in chosen.rows]
        batch = samples.batch(rows)
        assert batch.region_target_mask is not None
        targets = batch.targets_of(batch.masked_regions & batch.region_target_mask)
        # ImageBERT's answer is one class, and background is none.
        best = torch.nn.functional.one_hot(targets[:, :3].argmax(dim=1), 3).float()
        shares = (best if name == "ImageBERT" else targets).mean(dim=0)
        found = {}
        for what, bias in (("frequencies", shares.log()), ("all alike", torch.zeros_like(shares))):
            with torch.no_grad():
                for parameter in head.parameters():
                    parameter.zero_()
                (decoder,) = (each for each in head.parameters() if each.shape == bias.shape)
                decoder.copy_(bias)
            measures = masked_measures(model, samples, chosen, seed=0, batch_size=8, device=CPU)
            found[what] = next(measure for measure in measures if measure.name == "masked_regions")
        # VL-BERT takes a mean of each row with an epsilon of 1e-4.
        assert found["frequencies"].mean == pytest.approx(found["frequencies"].chance, rel=1e-3)
        assert found["all alike"].mean > 1.001 * found["all alike"].chance


def test_no_class_is_asked_about_where_the_store_has_none(tokenizer: Any) -> None:
    """Its ids would all be 0, which a model guesses right in no time."""
    for name in ("VL-BERT", "ViLBERT", "ImageBERT"):
        model = build(name)
        samples = EvaluationSamples(model.config, tokenizer, num_classes=None, with_class_ids=False)
        measures = masked_measures(model, samples, chosen_rows(), seed=0, batch_size=8, device=CPU)
        assert {each.name: each.items > 0 for each in measures if "accuracy" in each.name} == {
            "masked_word_accuracy": True, "masked_region_accuracy": False
        }  # fmt: skip


@pytest.mark.parametrize("loss", ["regression", "contrastive"])
def test_features_are_predicted_too(loss: str, tokenizer: Any, tmp_path: Path) -> None:
    options = VILBERT | {"region_loss": loss, "region_target_size": WIDTH, "num_negatives": 6}
    torch.manual_seed(0)
    model = ViLbertForPreTraining(ViLbertConfig(**options)).eval()
    values = []
    for batch_size in (1, 13):
        _, figures = evaluate(model, tokenizer, tmp_path / str(batch_size), batch_size=batch_size, retrieval=False)
        values.append(figures["masked_regions"].value)
        assert figures["masked_regions"].items > 0 and "masked_region_accuracy" not in figures
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_each_caption_once_with_its_image_and_once_with_another(tokenizer: Any) -> None:
    model, chosen = build("ViLBERT"), chosen_rows()
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    named = {each.name: each for each in matching_measures(model, samples, chosen, seed=0, batch_size=5, device=CPU)}
    right = np.zeros(6)
    with torch.inference_mode():
        for row in range(13):
            other = chosen.corpus.draw_row_of_another_image(row, np.random.default_rng([4, 0, row]))
            assert chosen.corpus.record_id(other) != chosen.corpus.record_id(row)
            for image_row, matches in ((row, True), (other, False)):
                output = model.encode(samples.batch([samples.pair(chosen.corpus, row, image_row)]))
                says = bool(model.match_log_odds(output) > 0)
                right[chosen.image_of_caption[row]] += says == matches
    assert named["matching_accuracy"].sums.tolist() == right.tolist()


def test_a_subset_has_the_same_masks_and_contains_smaller_ones(tokenizer: Any) -> None:
    every, four, two = (chosen_rows(max_images=count, seed=1) for count in (0, 4, 2))
    assert len(four.image_ids) == 4 and set(two.image_ids) < set(four.image_ids) < set(every.image_ids)
    assert chosen_rows(max_images=4, seed=2).image_ids != four.image_ids
    model = build("VisualBERT")
    samples = EvaluationSamples(model.config, tokenizer, num_classes=3)
    whole, part = (
        {each.name: each for each in masked_measures(model, samples, rows, seed=0, batch_size=1, device=CPU)}
        for rows in (every, four)
    )
    places = [every.image_ids.index(image_id) for image_id in four.image_ids]
    assert part["masked_words"].sums.tolist() == whole["masked_words"].sums[places].tolist()


def test_missing_images_must_be_allowed(tokenizer: Any, tmp_path: Path) -> None:
    model, captions = build("VisualBERT"), [*make_captions(), Caption("a cat", "gone")]
    with pytest.raises(ValueError, match=r"6 of 7 captioned images.*less than the 100 % of --min-match"):
        evaluate(model, tokenizer, tmp_path, captions=captions)
    result = evaluate_checkpoint(
        ModelCheckpoint(model, Path("nowhere")), tokenizer, make_store(), captions, tmp_path, min_match=0.8,
        config=EvaluationConfig(device="cpu"),
    )  # fmt: skip
    assert result.num_captions == 13 and result.join.without_image == 1


def test_a_long_caption_is_cut_and_told(tokenizer: Any, tmp_path: Path) -> None:
    captions = [*make_captions(), Caption("a cat and " * 30, "image-1")]
    result, _ = evaluate(build("InterBERT"), tokenizer, tmp_path, captions=captions, retrieval=False)
    assert "1 caption cut to the pieces that the model takes" in result.remarks


def test_a_caption_that_two_images_share_limits_what_is_possible(tokenizer: Any, tmp_path: Path) -> None:
    captions = [Caption("a cat", "image-0"), Caption("A  CAT", "image-1"), Caption("a dog in a hat", "image-2")]
    _, figures = evaluate(build("VisualBERT"), tokenizer, tmp_path, captions=captions)
    assert figures["text_to_image_r1"].best_possible == pytest.approx(2 / 3)
    assert figures["image_to_text_r1"].best_possible == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"vocab_size": 20}, "the model was made for 20; name the tokenizer it was trained with"),
        ({"region_feature_size": 13}, "features have width 12, the model was made for 13"),
        ({"region_target_size": 9}, "9 region labels, this store has 3 classes and background"),
        ({"num_task_tokens": 2}, "name one with --task-token, 0 to 1"),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], message: str, tokenizer: Any, tmp_path: Path) -> None:
    model = ViLbertForPreTraining(ViLbertConfig(**(VILBERT | change))).eval()
    with pytest.raises(ValueError, match=message):
        evaluate(model, tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())


def test_task_tokens_and_features_of_the_whole_image_arrive(tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tasks = ViLbertForPreTraining(ViLbertConfig(**VILBERT, num_task_tokens=2)).eval()
    values = [evaluate(tasks, tokenizer, tmp_path / str(task), task=task)[1]["matching"].value for task in (0, 1)]
    assert values[0] != values[1]
    whole = ImageBertForPreTraining(ImageBertConfig(**SIZES, num_region_labels=3, global_feature_size=5)).eval()
    with pytest.raises(ValueError, match="feature of the whole image of width 5, the store has none"):
        evaluate(whole, tokenizer, tmp_path / "whole")
    store = cast(Any, make_store())
    for number, image_id in enumerate(store):
        feature = np.full(5, number, np.float16)
        store[image_id] = dataclasses.replace(store[image_id], image_feature=feature)
    assert evaluate(whole, tokenizer, tmp_path / "whole", store=store)[1]["image_to_text_r1"].items == 6


def test_classes_of_imagebert_may_leave_background_out(tokenizer: Any) -> None:
    for labels in (3, 4):
        config = ImageBertConfig(**SIZES, num_region_labels=labels)
        assert EvaluationSamples(config, tokenizer, num_classes=3).objective is not None
    with pytest.raises(ValueError, match="5 region labels, this store has 3 classes"):
        EvaluationSamples(ImageBertConfig(**SIZES, num_region_labels=5), tokenizer, num_classes=3)


def test_images_that_were_trained_on_are_known_by_any_of_their_names(tmp_path: Path) -> None:
    assert trained_among(tmp_path, ["a"]) is None
    names = ("COCO_train2014_000000000042", "folder/b", "17")
    write_trained_images(tmp_path, (key for name in names for key in known_keys(name)))
    others = ["000000000042", "folder/b", "b", "17", "000000000043", "COCO_val2014_000000000017"]
    assert trained_among(tmp_path, others) == ["000000000042", "folder/b", "17"]
    (tmp_path / "trained_images.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"trained_images.npy: .*damaged"):
        trained_among(tmp_path, ["a"])


# --- two results ---


def test_two_models_are_compared_image_by_image(tokenizer: Any, tmp_path: Path) -> None:
    for name in ("ViLBERT", "InterBERT"):
        evaluate(build(name), tokenizer, tmp_path / name)
    found = {each.name: each for each in compare_results(tmp_path / "ViLBERT", tmp_path / "InterBERT" / "results.json")}
    left, right = (read_results(tmp_path / name)["figures"] for name in ("ViLBERT", "InterBERT"))
    assert found["matching"].first == pytest.approx(left["matching"]["value"])
    assert found["matching"].second == pytest.approx(right["matching"]["value"])
    assert set(found) == {name for name in left if not name.endswith("median_rank")}
    itself = compare_results(tmp_path / "ViLBERT", tmp_path / "ViLBERT")
    assert all((each.low, each.high) == (0, 0) and not each.excludes_zero for each in itself)
    evaluate(build("ViLBERT"), tokenizer, tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"differ in seed \(0, 1\)"):
        compare_results(tmp_path / "ViLBERT", tmp_path / "other")
    (tmp_path / "bad.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(ValueError, match=r"bad.json: no results.json"):
        compare_results(tmp_path / "ViLBERT", tmp_path / "bad.json")


def test_a_loss_that_is_not_finite_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    model = build("VisualBERT")
    with torch.no_grad():
        model.match_head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        evaluate(model, tokenizer, tmp_path)
    assert not (tmp_path / "results.json").exists()
