"""Pre-training on text alone: no store, no image, the same loop."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from captioned_records import LEARNER, TINY
from ranks import run_ranks, said
from text_training import LINES, SHORT, SMALL, run_on_text
from tiny_commands import Cli, Pictures, ok
from toy_training import log_of

from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import TextTask
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    path = tmp_path / "books.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def losses(folder: Path) -> list[float]:
    return [line["text_only_words"] for line in log_of(folder)]


@pytest.mark.slow
def test_words_can_be_learned_by_heart(books: Path, tmp_path: Path) -> None:
    done = run_on_text(books, tmp_path / "run", steps=100, batch_size=24, fixed_masks=True, model=LEARNER)
    assert done.evaluation["text_only_word_accuracy"] == 1.0
    assert done.evaluation["masked_words"] is None and done.evaluation["masked_regions"] is None
    assert done.sources == () and (tmp_path / "run" / "report.html").is_file()


def test_each_line_begins_one_row_an_epoch_with_masks_of_its_own() -> None:
    tokenizer = load_tokenizer("captions", LINES)
    fields = {**TINY, **SMALL, **dict(SYSTEMS["vlbert"].text_only_fields or {})}
    config = SYSTEMS["vlbert"].sizes["small"](**fields, vocab_size=tokenizer.vocab_size)
    model, sampler = SYSTEMS["vlbert"].model_class(config), VLBertSampler(SHORT, tokenizer, config, num_classes=20)

    def rows(epochs: int, batch_size: int, num_ranks: int = 1) -> list[tuple[str, list[int]]]:
        data = DataConfig(batch_size=batch_size)
        task = TextTask(model, LINES, sampler, data, pad_id=tokenizer.pad_id, seed=5)
        streams = [task.batches(0, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        found = []
        for _ in range(epochs * len(LINES) // batch_size // num_ranks):
            for batch in map(next, streams):
                assert batch.text_only is not None and batch.text_only.all()
                pieces = [ids[real].tolist() for ids, real in zip(batch.text_ids, batch.text_mask, strict=True)]
                found += list(zip(batch.sample_ids, pieces, strict=True))
        return found

    assert rows(1, 1) == rows(1, 4) == rows(1, 8)
    assert sorted(rows(1, 4)) == sorted(rows(1, 3, num_ranks=2))
    two = rows(2, 4)
    assert sorted(name for name, _ in two[:24]) == sorted(f"text line {number}" for number in range(24))
    first, second = dict(two[:24]), dict(two[24:])
    assert first.keys() == second.keys() and sum(first[name] != second[name] for name in first) > 12


def test_a_run_that_stops_goes_on_as_if_it_had_not(books: Path, tmp_path: Path) -> None:
    run_on_text(books, tmp_path / "whole")
    run_on_text(books, tmp_path / "cut", stop_at_step=5)
    run_on_text(books, tmp_path / "cut", resume=True, workers=2)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole") and len(losses(tmp_path / "cut")) == 12
    other = tmp_path / "other.txt"
    other.write_text("nothing of this\n")
    with pytest.raises(ValueError, match=r"task\.text_corpus: "):
        run_on_text(other, tmp_path / "cut", resume=True)


@pytest.mark.slow  # those of images do by default, with the same loop
def test_two_processes_train_as_one(books: Path, tmp_path: Path) -> None:
    """The parts that see images get no gradient in any of them."""
    run_on_text(books, tmp_path / "one", steps=4)
    work = partial(run_on_text, books, tmp_path / "two", steps=4, batch_size=4)
    assert run_ranks(work, 2, tmp_path / "said") == [0, 0], said(tmp_path / "said")
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)


def test_text_first_then_images(roibeam: Cli, books: Path, tmp_path: Path, pictures: Pictures) -> None:
    manifest = json.loads((pictures.store / "manifest.json").read_text())
    width = manifest["feature_dim"]
    sizes = {**TINY, "region_feature_size": width, "num_region_labels": 21}
    model = [word for name, value in sizes.items() for word in ("--set", f"model.{name}={json.dumps(value)}")]
    common = ("--batch-size", 4, "--steps", 3, "--device", "cpu")
    done = ok(roibeam("pretrain", tmp_path / "text", "--text-corpus", books, *common, *model, "--inspect-batch", 2))
    assert "evaluated on the first rows of text trained on" in done.out
    assert (tmp_path / "text" / "batch.html").read_text().count("sequence: text") == 2
    on_images = ("--store", pictures.store, "--captions", pictures.captions, "--from-run", tmp_path / "text", *common)
    facts = json.loads(ok(roibeam("pretrain", tmp_path / "both", *on_images, "--json")).out.splitlines()[-1])
    assert facts["captions"] == 8 and facts["evaluation"]["masked_words"] is not None
    ok(roibeam("pretrain", tmp_path / "text-2", "--text-corpus", books, "--from-run", tmp_path / "both", *common))
    # What the next stage is held against.
    config, before = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("text-2", "both"))
    assert config["task"]["feature_space"] == manifest["fingerprint"]["feature_space"]
    assert config["recorded"]["classes"] == before["recorded"]["classes"]
    narrow = ("--text-corpus", books, *common, *model, "--set", "model.region_feature_size=8")
    ok(roibeam("pretrain", tmp_path / "narrow", *narrow))
    refused = roibeam("pretrain", tmp_path / "no", *on_images[:4], "--from-run", tmp_path / "narrow", *common)
    assert refused.code == 1 and f"model.region_feature_size={width}" in refused.err, refused.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "for text without images, --text-corpus"),
        (("--captions", "captions.json"), "that --captions is for"),
        (("--recipe", "vlbert-base"), "that --recipe is for"),
        (("--validation-captions", "val.json"), "that --validation-captions is for"),
        (("--end-to-end",), "that --end-to-end is for"),
        (("--system", "vilbert"), "ViLBERT reads no text without images; name a --store"),
        (("--min-match", "0.5"), "that --min-match is for"),
        (("--num-classes", "7"), "that --num-classes is for"),
        (("--set", "data.share=0.5"), "data.share is of captions"),
        (("--set", "data.max_tokens=100"), "data.max_tokens is of captions"),
        (("--set", "data.validation_captions=7"), "data.validation_captions is of captions"),
        (("--set", "sampling.region_probability=0.5"), "sampling.region_probability is of captions"),
    ],
)
def test_what_needs_a_store(roibeam: Cli, books: Path, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    corpus = ("--text-corpus", books) if options else ()
    done = roibeam("pretrain", tmp_path / "run", *corpus, *options)
    assert done.code == 1 and told in done.err and len(done.err.strip().splitlines()) == 1, done.err


LAUNCHERS = {
    "torchrun": ("torchrun", "--no-python", "--standalone", "--nproc-per-node", "2"),
    "accelerate": ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--no_python"),
}


@pytest.mark.slow
def test_launchers_start_one_run_of_two_processes(books: Path, tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    sizes = [word for name, value in TINY.items() for word in ("--set", f"model.{name}={value}")]
    common = ["--text-corpus", books, "--steps", 4, "--learning-rate", 1e-3, "--device", "cpu", *sizes]
    common += [
        "--set", "model.hidden_dropout=0", "--set", "model.attention_dropout=0", "--set", "model.region_dropout=0",
    ]  # fmt: skip
    alone: tuple[str, ...] = ()
    for name, start in {"one": alone, **LAUNCHERS}.items():
        command = [*start, tools / "roibeam", "pretrain", tmp_path / name, *common, "--batch-size", 4 if start else 8]
        command[0] = tools / command[0]
        done = subprocess.run(
            [str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("2 processes" in done.stderr) == bool(start)
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "one"), rtol=1e-5)
