"""`roibeam search`: its ranks beside those of `predict`, of `evaluate`, of plain numpy and of the bare library."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from evaluated_models import MODELS, WITHOUT_MATCH, build
from photo_store import FINGERPRINT, draw_record, publish_store, write_shard
from test_evaluation import CPU, make_store
from test_evaluation import tokenizer as words_of_captions
from test_retrieval_command import told
from test_retrieval_command import world as captioned_features
from tiny_commands import TINY_SIZES, Cli, Pictures, command, ok, refused

from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store
from roibeam.model.task_heads import MatchModel
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.search import photos_by_words
from roibeam.pipelines.analysis.sentence_scores import SampleBatches
from roibeam.pipelines.analysis.vector_search import VectorIndex, nearest, opened_index
from roibeam.pipelines.finetuning.metrics.retrieval import FoldPairs
from roibeam.pipelines.finetuning.rows import TaskGroup, text_row
from roibeam.pipelines.finetuning.run.pair_scores import PairParts, pair_scorer, plan_pairs

tokenizer, world = words_of_captions, captioned_features  # fixtures


@pytest.fixture(scope="module")
def captioned(pictures: Pictures, tiny_network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures' store with their captions and features of whole photos, and a run of two steps on it."""
    folder = tmp_path_factory.mktemp("captioned")
    store = folder / "store"
    command(
        "extract", pictures.photos, store, *tiny_network, "--captions", pictures.captions, "--image-feature", "region"
    )
    asked = ("--store", store, "--captions", pictures.captions, "--steps", 2, "--batch-size", 4, *TINY_SIZES)
    for system in ("imagebert", "vlbert"):
        command("pretrain", folder / system, "--system", system, *asked, "--device", "cpu", "--threads", 1)
    return folder


def found(roibeam: Cli, *words: object) -> list[dict[str, Any]]:
    return list(told(roibeam("search", *words, "--json"))["found"])


def scores(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {row["image_id"]: row["score"] for row in rows}


def vectors_of(store: Path) -> tuple[list[tuple[str, int]], np.ndarray]:
    """Image and number of each region of a store, and their unit vectors."""
    with FeatureStore(store) as opened:
        records = list(opened)
    places = [(record.image_id, region) for record in records for region in range(record.num_regions)]
    rows = np.concatenate([record.features.astype(np.float64) for record in records])
    return places, rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_run_of_retrieval_ranks_as_predict_does(
    roibeam: Cli,
    world: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the only other way to these scores; needs no data of the task, and no other task is taken for it."""
    store, data = world
    run: tuple[Any, ...] = ("finetune", tmp_path / "run", "--task", "retrieval", "--from", "none", "--steps", 2)
    run = (*run, "--system", "vilbert", "--store", store, "--data", data, "--device", "cpu", "--threads", 1)
    ok(roibeam(*run, "--batch-size", 4))
    predict = ("predict", tmp_path / "run", "--store", store, "--data", data, "--split", "test", "--device", "cpu")
    ok(roibeam(*predict, "--out", tmp_path / "scores.npy"))
    ids = json.loads((tmp_path / "scores.npy.ids.json").read_text())
    images = json.loads((data / "dataset_flickr30k.json").read_text())["images"]
    texts = {
        f"{image['imgid']}#{place}": each["raw"] for image in images for place, each in enumerate(image["sentences"])
    }
    for caption, expected in zip(ids["captions"][:3], np.load(tmp_path / "scores.npy"), strict=False):
        rows = found(roibeam, store, texts[caption], "--model", tmp_path / "run", "--top", 16)
        assert [row["rank"] for row in rows] == [*range(1, 17)]
        assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
        np.testing.assert_allclose([scores(rows)[image] for image in ids["images"]], expected, atol=1e-5)
    monkeypatch.setattr("roibeam.pipelines.analysis.search.predicts_pairs", lambda found: False)  # as of another task
    said = refused(roibeam("search", store, "a dog", "--model", tmp_path / "run"))
    assert (
        "learned retrieval, which scores no sentence with stored features; name a run of finetune --task retrieval"
        in said
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_MATCH])
def test_pretrained_models_score_as_their_evaluation_does(name: str, tokenizer: Any) -> None:
    """Guards the samples of an evaluation that are scored by the engine of `predict`, for every system."""
    model, store = build(name), make_store()
    samples, ids, text = (
        EvaluationSamples(model.config, tokenizer, num_classes=3),
        [f"image-{number}" for number in range(6)],
        "a cat",
    )
    groups = [TaskGroup(each, (each,), (text_row(text),)) for each in ids]
    batches: Any = SampleBatches(samples, store)
    batches.num_regions = lambda group: store[group.images[0]].num_regions
    every = np.arange(len(ids))
    plan = plan_pairs(batches, groups[:1], groups, [FoldPairs(every[:1], every, every[:1])])
    parts = PairParts(
        pair_scorer(MatchModel(model).eval()), batches, plan, at_once=4, device=CPU, out=Path("o"), digest=""
    )
    pairs = [samples.batch([samples.seen(store[each], text)]) for each in ids]
    with torch.inference_mode():
        alone = [float(model.match_log_odds(model.encode(pair))) for pair in pairs]
    np.testing.assert_allclose(parts.block(plan.parts[0])[0], alone, rtol=1e-4, atol=1e-4)


def test_a_pretrained_run_and_a_choice_by_words(roibeam: Cli, captioned: Path) -> None:
    """Guards that --among changes which photos are scored and no score, by captions and by names of classes."""
    asked = (captioned / "store", "a red ball on a box", "--model", captioned / "imagebert", "--device", "cpu")
    every = found(roibeam, *asked)
    assert len(every) == 8 and all(row["caption"] and row["region"] is None for row in every)
    some = told(roibeam("search", *asked, "--among", 3, "--json"))
    assert some["searched"] == len(some["found"]) == 3
    assert any("chose 3 of 8 photos by words of captions and class names: a (" in note for note in some["notes"])
    assert "a score above 0 means that the model takes sentence and photo for a pair" in some["notes"]
    poor = json.loads((captioned / "imagebert" / "summary.json").read_text())
    poor["intervals"]["matching_accuracy"] = [0.5, 0.7]
    (captioned / "imagebert" / "summary.json").write_text(json.dumps(poor))
    words = (captioned / "store", "zebra xylophone", *asked[2:], "--json")
    notes = told(roibeam("search", *words))["notes"]
    assert any("at chance" in note for note in notes) and any("zebra" in note for note in notes), notes
    for row in some["found"]:
        assert row["score"] == pytest.approx(scores(every)[row["image_id"]], abs=1e-5)
    words = (captioned / "store", "zyx", *asked[2:], "--among", 3)
    assert "no caption and no class name in" in refused(roibeam("search", *words))


def test_rare_words_choose_photos_by_the_names_of_classes(world: tuple[Path, Path]) -> None:
    with FeatureStore(world[0]) as store:
        counts = {each: len({3, 5} & {*store.meta(each).class_ids.tolist()}) for each in store.ids()}
        notes: list[str] = []
        chosen = photos_by_words(store, "CLASS 3, or class 5", 4, notes)
    assert len(chosen) == 4 and min(counts[each] for each in chosen) >= max(
        count for each, count in counts.items() if each not in chosen
    )
    assert notes[0].startswith("chose 4 of 16 photos by words of captions and class names: 3 (")
    assert notes[0].endswith("class (16)")
    with FeatureStore(world[0]) as store:
        assert photos_by_words(store, "a 3", 16, []) == [each for each in counts if 3 in store.meta(each).class_ids]


def test_a_model_without_a_match_head_is_refused(roibeam: Cli, captioned: Path) -> None:
    done = roibeam("search", captioned / "store", "a ball", "--model", captioned / "vlbert", "--device", "cpu")
    assert "has no match head; models of roibeam pretrain have one with --system visualbert" in refused(done)
    assert "or finetune it --task retrieval" in done.err


def test_regions_are_found_as_by_brute_force_and_find_themselves_first(roibeam: Cli, pictures: Pictures) -> None:
    """Guards numbers of regions, ids and cosines, which other commands print nowhere."""
    places, unit = vectors_of(pictures.store)
    for row in range(0, len(places), 17):
        image_id, region = places[row]
        rows = found(roibeam, pictures.store, "--region", f"{image_id}:{region}", "--top", len(places))
        assert (rows[0]["image_id"], rows[0]["region"]) == (image_id, region) and rows[0]["score"] > 0.99999
        expected = dict(zip(places, unit @ unit[row], strict=True))
        assert len(rows) == len(places)
        for each in rows:
            assert each["score"] == pytest.approx(expected[each["image_id"], each["region"]], abs=1e-5)
    shown = told(roibeam("store", "show", pictures.store, image_id, "--max-regions", 500, "--json"))["regions"]
    assert {each["region"] for each in shown} == {number for name, number in places if name == image_id}
    best = found(roibeam, pictures.store, "--region", f"{image_id}:{region}", "--top", 3)
    assert [each["score"] for each in best] == [each["score"] for each in rows[:3]]


def test_an_index_has_the_recall_that_it_tells_and_serves_its_store_alone(
    roibeam: Cli, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards faiss from files that others made: it trusts what it reads."""
    pytest.importorskip("faiss")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index, store = tmp_path / "a.index", tmp_path / "noise"
    generator = np.random.default_rng(0)
    store.mkdir()
    records = []
    for number in range(300):
        record = draw_record(number % 8, 16)
        features = generator.standard_normal(record.features.shape).astype(np.float16)
        records.append(replace(record, image_id=f"{number:03}", features=features, class_distribution=None))
    write_shard(store, 0, iter(records[:200]))
    write_shard(store, 1, iter(records[200:]))
    publish_store(store, [0, 1], fingerprint=FINGERPRINT, config={})
    asked = (store, "--region", "250:1", "--index", index)
    first = told(roibeam("search", *asked, "--json"))
    facts = json.loads((tmp_path / "a.index.json").read_text())
    assert f"it finds {100 * facts['recall']:.1f} % of what exact search finds" in first["notes"][0]
    exact = found(roibeam, store, "--region", "250:1")
    assert first["found"][0]["image_id"] == "250" and first["found"][0]["region"] == 1
    assert {row["score"] for row in first["found"]} <= {row["score"] for row in exact} or facts["recall"] < 1
    assert _recall(index, facts, store) == pytest.approx(facts["recall"], abs=0.1)
    written = index.stat().st_mtime_ns
    assert told(roibeam("search", *asked, "--json"))["found"] == first["found"] and index.stat().st_mtime_ns == written
    place = pictures.store, "--region", f"{vectors_of(pictures.store)[0][0][0]}:0", "--index", index
    assert found(roibeam, *place)[0]["region"] == 0 and index.stat().st_mtime_ns > written  # of another store
    own = bytearray(index.read_bytes())
    own[len(own) // 2] ^= 1
    index.write_bytes(own)
    assert "was changed, or is no index that you made here" in refused(roibeam("search", *place))
    own[len(own) // 2] ^= 1
    index.write_bytes(own)
    assert found(roibeam, *place)
    for key, words in ((b"", "has 0 bytes, expected 32; remove it"), (bytes(32), "was changed, or is no index")):
        (tmp_path / "cache" / "roibeam" / "index.key").write_bytes(key)  # of a full disk; a stranger's
        assert words in refused(roibeam("search", *place))
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr("roibeam.pipelines.analysis.search.find_spec", lambda name: None)
    without = told(roibeam("search", *asked, "--json"))
    assert "faiss is not installed" in without["notes"][0] and without["found"] == exact


def test_an_index_gives_as_many_photos_as_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where photos have many regions that are all alike."""
    pytest.importorskip("faiss")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shared = {"height": 9, "width": 9, "boxes": np.tile(np.array([0, 0, 5, 5], np.float32), (40, 1))}
    directions = np.eye(16, dtype=np.float32)[:12]
    rows = [
        {"image_id": f"{each:02}", "features": np.tile(row, (40, 1)), **shared} for each, row in enumerate(directions)
    ]
    write_store(tmp_path / "store", rows, feature_space="drawn")
    with FeatureStore(tmp_path / "store") as store:
        index = opened_index(tmp_path / "a.index", store, "regions")
        query = directions[:1] + 0.1
        hits = nearest(index.records(store, query, 10, 10), query, 10, "regions", by_photo=True)
    assert len({hit.image_id for hit in hits}) == 10


def _recall(index: Path, facts: dict[str, Any], store: Path) -> float:
    """By plain numpy and the index alone, of other queries."""
    places, unit = vectors_of(store)
    opened, right = VectorIndex(index, facts), 0
    with FeatureStore(store) as records:
        for row in range(0, len(places), len(places) // 100):
            best = set(np.argsort(-unit @ unit[row])[:10].tolist())
            query = unit[row].astype(np.float32)[None]
            hits = nearest(opened.records(records, query, 10), query, 10, opened.which)
            right += sum(places.index((hit.image_id, hit.region)) in best for hit in hits)
    return right / (10 * len(range(0, len(places), len(places) // 100)))


@pytest.mark.parametrize("name, which", [("pictures", "regions"), ("captioned", "whole photos")])
def test_a_photo_of_the_store_finds_itself_first(
    name: str, which: str, request: pytest.FixtureRequest, roibeam: Cli, pictures: Pictures, tmp_path: Path
) -> None:
    """Guards that the store's own detector looks at the photo, by its regions and by its whole."""
    store = pictures.store if name == "pictures" else request.getfixturevalue("captioned") / "store"
    photo = sorted(pictures.photos.iterdir())[3]
    told_ = told(roibeam("search", store, "--photo", photo, "--json", "--device", "cpu"))
    first = told_["found"][0]
    assert first["image_id"] == photo.stem and first["score"] > 0.999 and told_["query"].endswith(which)
    assert (first["region"] is None) == (which == "whole photos")
    other = ("search", store, "--photo", photo, "--weights", "random:2", "--device", "cpu")
    assert "has other features than its detector gives now (" in refused(roibeam(*other))


# Text networks


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of random numbers with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("clip")
    narrow = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = ["<pad>", "<start>", "<end>", "<unk>", "a", "red", "ball", "blue", "box"]
    text = {**narrow, "vocab_size": 16, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    vision = {**narrow, "image_size": 32, "patch_size": 8}
    network = t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).eval()
    network.save_pretrained(folder)
    t.CLIPImageProcessor().save_pretrained(folder)
    coder = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
    coder.pre_tokenizer = pre_tokenizers.Whitespace()
    coder.post_processor = processors.TemplateProcessing("<start> $A <end>", None, [("<start>", 1), ("<end>", 2)])
    t.PreTrainedTokenizerFast(tokenizer_object=coder, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
    return folder


def test_a_sentence_ranks_by_the_text_network_of_the_vectors(
    roibeam: Cli, pictures: Pictures, tiny_network: tuple[str, ...], clip: Path, tmp_path: Path
) -> None:
    """Guards texts and photos from landing in two spaces: beside the bare library, with whole photos and without."""
    network, text = t.CLIPModel.from_pretrained(clip), "a red ball"
    inputs = t.AutoTokenizer.from_pretrained(clip)([text], return_tensors="pt")
    with torch.no_grad():
        query = network.get_text_features(**inputs)["pooler_output"][0].numpy()
    backbone = ("--backbone", f"hf:{clip}#projection")
    for name, more in (("plain", ()), ("wholes", ("--image-feature", "region"))):
        store = tmp_path / name
        ok(roibeam("extract", pictures.photos, store, *tiny_network, *backbone, *more))
        rows = found(roibeam, store, text, *backbone, "--device", "cpu")
        with FeatureStore(store) as opened:
            for record in opened:
                every = [*record.features, *([record.image_feature] if more else [])]
                cosines = [each @ query / np.linalg.norm(each) / np.linalg.norm(query) for each in np.float32(every)]
                assert scores(rows)[record.image_id] == pytest.approx(max(cosines), abs=1e-5)
    assert f"was made by hf:{clip}#projection: give it again, --backbone" in refused(roibeam("search", store, text))
    other = tmp_path / "other"
    shutil.copytree(clip, other)
    torch.manual_seed(1)
    t.CLIPModel(network.config).save_pretrained(other)
    said = refused(roibeam("search", store, text, "--backbone", f"hf:{other}#projection", "--device", "cpu"))
    assert "has other weights than the network that made" in said
    (other / "model.safetensors").unlink()
    said = refused(roibeam("search", store, text, "--backbone", f"hf:{other}#projection"))
    assert "has no weights; expected model.safetensors" in said
    said = refused(roibeam("search", store, text, "--backbone", f"hf:{clip}#pooled"))
    assert "has no text network; name a model with --model RUN" in said


def test_the_page_has_photos_or_grey_sheets_and_is_whole_or_not_there(
    roibeam: Cli, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, store = tmp_path / "found.html", pictures.store
    asked = ("search", store, "--region", f"{vectors_of(store)[0][0][0]}:0", "--html", page)
    ok(roibeam(*asked))
    assert page.read_text("utf-8").count("data:image/jpeg") == page.read_text("utf-8").count("<figure>") == 10
    moved = shutil.copytree(store, tmp_path / "moved")
    for plan in moved.glob("plan*"):
        shutil.rmtree(plan) if plan.is_dir() else plan.unlink()
    ok(roibeam("search", moved, *asked[2:]))
    assert page.read_text("utf-8").count('class="empty"') == 10 and "Photo not shown" in page.read_text("utf-8")
    ok(roibeam("search", moved, *asked[2:], "--photos", pictures.photos))
    before = page.read_bytes()
    assert before.count(b"data:image/jpeg") == 10

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roibeam.pipelines.analysis.search.box_canvas", stopped)
    assert roibeam(*asked).code == 130 and page.read_bytes() == before
    assert os.listdir(tmp_path).count("found.html") == 1 and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    "words, says",
    [
        ("STORE", "give one thing to look for: a sentence"),
        ("STORE text --photo PHOTO", "give one thing to look for: a sentence"),
        ("STORE text", "has no text network; name a model with --model RUN, or search a store that was extracted"),
        ("STORE --region sample_00001", "expected ID:N, an image of the store and the number of a region"),
        ("STORE --region sample_0001:0", "did you mean 'sample_00001'"),
        ("STORE --region sample_00001:5000", "regions, from 0; roibeam store show lists them"),
        ("STORE --region sample_00001:0 --model RUN", "--model goes with a sentence; leave it out"),
        ("STORE --region sample_00001:0 --among 3", "--among goes with --model; leave it out"),
        ("STORE text --model RUN --index x", "--index goes with --region and --photo; leave it out"),
        ("STORE text --model RUN --html RUN", "is a folder; name a file"),
        ("STORE text --model STORE", "expected a model's folder, a run of roibeam pretrain or a checkpoint"),
        ("STORE --photo TEXT", "text.jpg: not an image: no known image format"),
    ],
)
def test_wrong_words_are_one_line(words: str, says: str, roibeam: Cli, captioned: Path, pictures: Pictures) -> None:
    (captioned / "text.jpg").write_text("no photo")
    named = {"STORE": pictures.store, "RUN": captioned / "imagebert", "PHOTO": next(pictures.photos.iterdir())}
    named["TEXT"] = captioned / "text.jpg"
    assert says in refused(roibeam("search", *(named.get(word, word) for word in words.split())))
