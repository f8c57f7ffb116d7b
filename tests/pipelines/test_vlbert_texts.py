"""VL-BERT's relationship task, and rows of text alone beside its captions."""

import numpy as np
import pytest
from captioned_records import CAPTIONS, LEARNER, NUM_CLASSES, TINY, WIDTH, make_corpus, make_store, run_pretrain

from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.vlbert.config import vlbert_config
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.pretraining.samples.sampler import TextCorpus, TextRows
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.pretraining.samples.vlbert import VLBertSampler
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"coordinate_embedding_size": 64, "region_dropout": 0.0}
LINES = [f"{first} and {second}" for first in CAPTIONS for second in CAPTIONS[:3]]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", [*CAPTIONS, *LINES])


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(make_store(8), enumerate(CAPTIONS))


def make_sampler(tokenizer, *, preset="release", config=None, **settings):
    sizes = TINY | SMALL | {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH}
    sizes |= {"num_region_labels": NUM_CLASSES + 1} | (config or {})
    return VLBertSampler(VLBertSampling(**settings), tokenizer, vlbert_config(preset, **sizes), num_classes=NUM_CLASSES)


def test_a_model_with_the_head_sees_captions_of_other_images(tokenizer, corpus):
    sampler, seen = make_sampler(tokenizer, preset="paper", max_elements=0), []
    for seed in range(60):
        sample = sampler.sample(corpus, 2, np.random.default_rng(seed))
        ids = np.where(sample.text_labels == IGNORE_INDEX, sample.text_ids, sample.text_labels)
        own = tokenizer.decode(ids[1:-1]) == CAPTIONS[2]
        assert sample.sample_id == "image-2" and sample.match == int(own)
        seen.append(sample.match)
    assert 15 < sum(seen) < 45
    assert make_sampler(tokenizer).sample(corpus, 2, np.random.default_rng(0)).match is None


@pytest.mark.slow
def test_relationship_and_masks_can_be_learned_by_heart(tmp_path):
    done = run_pretrain(
        make_store(8), tmp_path / "run", system=SYSTEMS["vlbert"], build_config=SYSTEMS["vlbert"].sizes["paper-small"],
        train_config=TrainConfig(steps=120, learning_rate=3e-3, warmup_steps=10, device="cpu"),
        data=DataConfig(batch_size=8, fixed_masks=True), model_overrides=LEARNER | SMALL | {"initializer_range": 0.1},
        sampling=VLBertSampling(word_probability=0.3, region_probability=0.3, word_masked_share=1),
    )  # fmt: skip
    assert done.evaluation["matching_accuracy"] == 1.0 and done.evaluation["matching"] < 0.1
    assert done.evaluation["masked_words"] < 0.2


def test_a_row_of_text_goes_on_in_the_next_lines_and_has_no_special_pieces(tokenizer):
    sampler = make_sampler(tokenizer, word_probability=0.0, min_text_words=20, max_text_pieces=30)
    lines = ["one dog", " ".join(["ball"] * 17), "a tree", "the sand"]
    joined = [tokenizer.encode(line).ids[1:-1] for line in (lines[2], lines[3], lines[0], lines[1])]
    sample = sampler.text_sample(lines, 2, np.random.default_rng(0))
    wanted = np.concatenate(joined)
    assert sum(map(len, joined[:3])) < 20 <= len(wanted)  # the last line is needed for 20 words, and stays whole
    np.testing.assert_array_equal(sample.text_ids, wanted[:30])
    assert sample.text_only is True and sample.features.shape == (0, WIDTH) and sample.match is None
    assert not {tokenizer.cls_id, tokenizer.sep_id} & set(sample.text_ids.tolist())
    short = make_sampler(tokenizer, min_text_words=20, max_text_pieces=7)
    assert len(short.text_sample(lines, 2, np.random.default_rng(0)).text_ids) == 7
    # A corpus of fewer words than a row: it comes again.
    assert len(make_sampler(tokenizer).text_sample(["one dog"], 0, np.random.default_rng(0)).text_ids) == 64


def test_text_is_masked_by_whole_words(tokenizer):
    sampler, lines = make_sampler(tokenizer, min_text_words=200, max_text_pieces=200), ["wooden tables xylophone " * 70]
    encoded = tokenizer.encode(lines[0])
    words = encoded.word_ids[1:-1][:200]
    chosen = total = 0
    for seed in range(100):
        sample = sampler.text_sample(lines, 0, np.random.default_rng(seed))
        labelled = sample.text_labels != IGNORE_INDEX
        for word in np.unique(words[:-5]):
            of_word = labelled[words == word]
            assert of_word.all() or not of_word.any()
            chosen, total = chosen + bool(of_word[0]), total + 1
    assert abs(chosen - 0.15 * total) < 5 * np.sqrt(total * 0.15 * 0.85)


def test_words_of_two_lines_are_two_words(tokenizer):
    sampler = make_sampler(tokenizer, word_probability=0.5, min_text_words=40)
    both = [0, 0]
    for seed in range(50):
        labels = sampler.text_sample(["dogs", "ball"], 0, np.random.default_rng(seed)).text_labels != IGNORE_INDEX
        both[int(labels[0] == labels[1])] += 1
    assert min(both) > 10


@pytest.mark.parametrize("per_caption", [1.0, 0.25, 1.5])
@pytest.mark.parametrize("num_lines", [1, 2, 7, 24, 1000])
def test_every_line_comes_once_before_one_comes_again(tokenizer, per_caption, num_lines):
    lines = [f"line {number}" for number in range(num_lines)]
    rows = TextRows(lines, make_sampler(tokenizer), num_captions=10, per_caption=per_caption, seed=3)
    numbers = [rows.line(number) for number in range(3 * num_lines)]
    for start in range(0, len(numbers), num_lines):
        assert sorted(numbers[start : start + num_lines]) == list(range(num_lines))
    if num_lines == 1000:  # a hundredth of them is spread over the corpus
        assert max(np.diff(sorted([0, *numbers[:10], 1000]))) < 250
    of_epochs = [sample.sample_id for epoch in range(4) for row in range(10) for sample in rows.samples(epoch, row)]
    assert of_epochs == [f"text line {rows.line(number)}" for number in range(int(40 * per_caption))]


def test_batches_of_any_size_and_ranks_hold_the_same_text(tokenizer, corpus):
    sampler = make_sampler(tokenizer, preset="paper", config={"with_text_only": True})
    model = VLBertForPreTraining(sampler._config)

    def rows(batch_size, num_ranks=1):
        data = DataConfig(batch_size=batch_size, texts_per_caption=0.5)
        task = PretrainTask(model, corpus, sampler, data, pad_id=tokenizer.pad_id, seed=5, lines=LINES)
        streams = [task.batches(0, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        found = []
        for _ in range(24 // batch_size // num_ranks):
            for stream in streams:
                batch = next(stream)
                assert batch.text_only is not None and batch.match_labels is not None
                # Losses are added up by name: those of one batch must be those of all.
                names = {"masked_words", "text_only_words", "masked_regions", "matching"}
                assert set(model.loss_counts(batch)) == names
                assert ((batch.match_labels == IGNORE_INDEX) == batch.text_only).all()
                for row in range(batch.batch_size):
                    real = batch.text_mask[row]
                    found.append((batch.sample_ids[row], batch.text_ids[row, real].tolist()))
        return sorted(found)

    assert rows(1) == rows(4) == rows(3, num_ranks=2) and len(rows(1)) == 36


def test_a_run_with_a_text_corpus(tmp_path):
    (tmp_path / "books.txt").write_bytes("\n".join(LINES[:12]).encode() + b"\n\n\nan old caf\xe9\n")
    (tmp_path / "wiki.txt").write_text("\n".join([*LINES[12:], "a zeppelin is a zeppelin"]))
    files = [tmp_path / "books.txt", tmp_path / "wiki.txt"]
    settings = {
        "train_config": TrainConfig(steps=60, learning_rate=3e-3, warmup_steps=10, device="cpu"),
        "data": DataConfig(batch_size=8, fixed_masks=True, texts_per_caption=0.5),
        "sampling": VLBertSampling(min_text_words=10, max_text_pieces=24), "model_overrides": LEARNER | SMALL,
    }  # fmt: skip
    done = run_pretrain(make_store(8), tmp_path / "run", text_files=files, **settings)
    left_out, cure = done.notes
    assert left_out == "books.txt: 1 row left out: 1 not UTF-8 (line 15)" and "cp1252" in cure
    assert done.evaluation["text_only_words"] < 2 and done.evaluation["masked_words"] < 2
    words = load_tokenizer(str(tmp_path / "run" / "tokenizer")).encode("zeppelin").ids
    assert len(words) == 3  # the text's words are in the vocabulary
    other = tmp_path / "other.txt"
    other.write_text("nothing of this\n")
    with pytest.raises(ValueError, match=r"task\.text_corpus: "):
        run_pretrain(make_store(8), tmp_path / "run", resume=True, text_files=[other], **settings)


def test_corpora_that_are_none(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes("déjà vu\n".encode("latin-1"))
    for name, words in (
        ("gone", "no such text file"),
        ("empty", r"empty\.txt: no text in it; expected UTF-8"),
        ("latin", r"no text in it.*1 row left out: 1 not UTF-8"),
    ):
        with pytest.raises(ValueError, match=words):
            TextCorpus([tmp_path / f"{name}.txt"])
    with pytest.raises(ValueError, match="VisualBERT reads no text without images"):
        run_pretrain(make_store(2), tmp_path / "run", system=SYSTEMS["visualbert"], text_files=[tmp_path / "empty.txt"])
    with pytest.raises(ValueError, match=r"texts_per_caption must be in 0\.001\.\.1000, got 0; for none"):
        DataConfig(texts_per_caption=0)
