"""`roibeam evaluate` as a user runs it: on a run, a Karpathy split and a store, and on everything that does not fit."""

import json
import shutil
from pathlib import Path

import pytest
from evaluated_models import MODELS, build
from small_files import write_text
from tiny_commands import Cli, Pictures, command, ok, one_line, tiny_run


@pytest.fixture(scope="module")
def world(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eight pictures, their captions, a run that was trained on them, and a Karpathy file of them.

    The run's vocabulary does not know the numbers in the Karpathy file: to a model its captions are two texts.
    """
    folder = tmp_path_factory.mktemp("world")
    shutil.copytree(pictures.store, folder / "store")
    shutil.copy(pictures.captions, folder / f"captions{pictures.captions.suffix}")
    command("pretrain", folder / "run", "--system", "vlbert", *data_of(folder, "captions.*"), *tiny_run(2))
    write_karpathy(pictures.photos, folder)
    return folder


def write_karpathy(photos: Path, folder: Path) -> None:
    images = []
    for number, photo in enumerate(sorted(photos.iterdir())):
        sentences = [
            {"raw": text, "tokens": text.split(), "sentid": 2 * number + place, "imgid": number}
            for place, text in enumerate((f"a picture of {number} things", "shapes on a ground"))
        ]
        split = "train" if number < 2 else "test"
        images.append({"filename": photo.name, "imgid": number, "split": split, "sentences": sentences})
    (folder / "karpathy.json").write_text(json.dumps({"images": images, "dataset": "toy"}))


def save_model(world: Path, name: str, folder: Path) -> Path:
    """A model of another system in a folder, with the run's tokenizer, for the store's features."""
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

    with FeatureStore(world / "store") as store:
        width, classes = store.feature_dim, len(store.vocabulary["classes"] or ())
        found = store[next(iter(store.ids()))].class_distribution
        labels = (classes or getattr(found, "num_classes", 0) or found.shape[1] - 1) + 1
    changes = {"vocab_size": load_tokenizer(str(world / "run" / "tokenizer")).vocab_size}
    changes |= {"region_feature_size": width, "max_position_embeddings": 64}
    before = build(name)
    config = before.config.to_diff_dict() | changes
    config |= {field: labels for field in ("num_region_labels", "region_target_size") if field in config}
    model = type(before)(type(before.config).from_dict(config))
    model.save_pretrained(folder)
    return folder


def data_of(world: Path, captions: str = "karpathy.*") -> tuple[object, ...]:
    return ("--store", world / "store", "--captions", *world.glob(captions))


def test_a_run_on_held_out_captions(roibeam: Cli, world: Path, tmp_path: Path) -> None:
    done = ok(roibeam("evaluate", world / "run", *data_of(world), "--out", tmp_path / "e", "--device", "cpu"))
    assert "12 captions of 6 images, evaluated at step " in done.out and "masked words, right" in done.out
    assert done.out.count("note: no matching and no retrieval: this model has no match head; ") == 1
    assert "--system visualbert" in done.out and "no match head" not in done.err
    assert f"{tmp_path / 'e' / 'results.json'}   all of it" in done.out
    results = json.loads((tmp_path / "e" / "results.json").read_text())
    assert results["asked"]["split"] == "test" and results["checkpoint"]["step"] == 2
    assert results["store"]["feature_space"] and results["question"]["images"] == 6
    assert "note: this run was trained on 6 of the 6 images" in done.out  # with other captions


@pytest.mark.parametrize("name", ["ViLBERT", "VisualBERT"])  # of every other: test_evaluation
def test_other_systems_and_their_comparison(name: str, roibeam: Cli, world: Path, tmp_path: Path) -> None:
    assert name in MODELS
    options = (*data_of(world), "--tokenizer", world / "run" / "tokenizer", "--device", "cpu")
    model = save_model(world, name, tmp_path / "model")
    done = ok(roibeam("evaluate", model, *options, "--out", tmp_path / "a", "--json"))
    said = json.loads(done.out)
    figures = {figure["name"]: figure for figure in said["figures"]}
    assert figures["text_to_image_r5"]["chance"] == pytest.approx(5 / 6) and figures["matching"]["items"] == 24
    assert "retrieval: 12 pairs (6 images with 2 different texts), about" in done.err
    ok(roibeam("evaluate", model, *options, "--out", tmp_path / "b", "--batch-size", 3))
    compared = ok(roibeam("evaluate", "--compare", tmp_path / "a", tmp_path / "b"))
    assert "image to text, R@1" in compared.out and "no clear difference" in compared.out
    half = json.loads(
        ok(roibeam("evaluate", model, *options, "--out", tmp_path / "d", "--precision", "bf16", "--json")).out
    )
    assert json.loads((tmp_path / "d" / "results.json").read_text())["settings"]["precision"] == "bf16"
    losses = [{each["name"]: each["value"] for each in told["figures"]}["masked_words"] for told in (said, half)]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.02)
    refused = roibeam("evaluate", model, *options, "--out", tmp_path / "f", "--precision", "fp16")
    assert "fp16 needs an accelerator" in one_line(refused) and not (tmp_path / "f").exists()
    few = roibeam("evaluate", model, *options, "--out", tmp_path / "c", "--max-images", 3, "--json")
    assert json.loads(few.out)["images"] == 3
    assert "differ in max_images" in one_line(roibeam("evaluate", "--compare", tmp_path / "a", tmp_path / "c"))


def test_captions_that_were_trained_on_are_told(roibeam: Cli, world: Path, tmp_path: Path) -> None:
    done = ok(roibeam("evaluate", world / "run", *data_of(world, "captions.*"), "--out", tmp_path / "e"))
    assert done.out.count("note: this run was trained on these very captions") == 1
    assert "trained on these" not in done.err


def test_a_part_that_was_trained_on_is_told(roibeam: Cli, world: Path, tmp_path: Path) -> None:
    trained = ok(roibeam("pretrain", tmp_path / "run", *data_of(world), *tiny_run(2)))  # on the split train
    assert "12 captions of the splits val and test left out" in trained.err
    held_out = ok(roibeam("evaluate", tmp_path / "run", *data_of(world), "--out", tmp_path / "a"))
    assert "was trained on" not in held_out.out
    every = roibeam("evaluate", tmp_path / "run", *data_of(world, "captions.*"), "--out", tmp_path / "b")
    assert "note: this run was trained on 2 of the 8 images, such as sample_0000" in every.out


def test_another_detectors_store_is_refused(
    roibeam: Cli, extract: Cli, pictures: Pictures, world: Path, tmp_path: Path
) -> None:
    ok(extract(pictures.photos, tmp_path / "store", "--weights", "random:8"))
    done = roibeam("evaluate", world / "run", *data_of(world, "captions.*"), "--store", tmp_path / "store")
    assert "extract these images with the detector and options of its training store" in one_line(done)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--captions", "missing.json"], "no such file or folder: --captions 'missing.json'"),
        (["--split", "validation"], "choose one of train, restval, val, test"),
        (["--captions", "{tsv}", "--split", "test"], "has no splits"),
        (["--split", "val"], "no captions in it"),
        (["--store", "{tmp}"], "no feature store here"),
        (["--device", "tpu"], "expected auto, cpu, cuda or cuda:<n>"),
        (["--folds", "2", "--no-retrieval"], "folds are of retrieval"),
        (["--task-token", "0"], "no task tokens"),
        (["--tokenizer", "{vocab}"], "is not the one that"),
        (["--out", "{vocab}"], "is a file; nothing is replaced"),
        (["--out", "{tmp}"], "is there already and is not empty ('captions.tsv' is in it)"),
        (["--compare", "a", "b"], "give it no checkpoint or store"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    options: list[str], words: str, roibeam: Cli, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "picture"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "captions.tsv").write_text("a dog\tsample.jpg\n")
    places = {"tmp": tmp_path, "vocab": tmp_path / "vocab.txt", "tsv": tmp_path / "captions.tsv"}
    extra = [option.format(**places) for option in options]
    given = {"--store": world / "store", "--captions": world / "karpathy.json"}
    base = [part for name, value in given.items() if name not in extra for part in (name, value)]
    assert words in one_line(roibeam("evaluate", world / "run", *base, *extra))
    assert not (tmp_path / "evaluation").exists()


def test_nothing_to_evaluate(roibeam: Cli, world: Path, tmp_path: Path) -> None:
    assert "needs a checkpoint and --store" in one_line(roibeam("evaluate"))
    model = save_model(world, "ViLBERT", tmp_path / "alone")
    unread = one_line(roibeam("evaluate", model, *data_of(world), "--out", tmp_path / "e"))
    assert "--tokenizer is missing" in unread
    without = roibeam("evaluate", model, "--store", world / "store")
    assert "is no run's folder: name the folder to write with --out, such as --out evaluation" in one_line(without)


def test_results_lie_in_the_runs_folder_and_stay(
    roibeam: Cli, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written where the user happens to stand, and an older evaluation keeps its place."""
    shutil.copytree(world / "run", tmp_path / "run")
    write_text(tmp_path / "here" / "evaluation" / "notes.txt", "of somebody")
    monkeypatch.chdir(tmp_path / "here")
    for name in ("evaluation", "evaluation-2"):
        done = ok(roibeam("evaluate", tmp_path / "run", *data_of(world)))
        assert f"{tmp_path / 'run' / name / 'results.json'}   all of it" in done.out
    first = (tmp_path / "run" / "evaluation" / "results.json").read_text()
    assert json.loads(first)["figures"] == json.loads((tmp_path / "run" / name / "results.json").read_text())["figures"]
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["evaluation", "evaluation/notes.txt"]
