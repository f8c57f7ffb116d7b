"""Captions to pieces: vocabularies of all kinds, whole words, and the cut of transformers."""

import json

import pytest
from captioned_records import CAPTIONS
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.model_files.tokenizer_json import check_tokenizer_json


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("captions", CAPTIONS * 2)  # twice: every word is common enough to stay whole


def test_tokenizer_round_trip(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    loaded = load_tokenizer(str(tmp_path / "tokenizer"))
    before, after = tokenizer.encode(CAPTIONS[0]), loaded.encode(CAPTIONS[0])
    assert before.ids.tolist() == after.ids.tolist() and before.word_ids.tolist() == after.word_ids.tolist()
    assert loaded.digest == tokenizer.digest and loaded.vocab_size == tokenizer.vocab_size


def test_captions_are_cut_as_transformers_cuts_them(tokenizer, tmp_path):
    """Also with a tokenizer that was saved with a longest length and padding."""
    tokenizer.save(tmp_path)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours, theirs = load_tokenizer(str(tmp_path)), PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    for caption in (*CAPTIONS, "", "Naïve [MASK] 日本, two-year-old\tdogs?"):
        wanted = theirs(caption, add_special_tokens=False)
        encoded = ours.encode(caption)
        assert encoded.ids[1:-1].tolist() == wanted["input_ids"]
        assert encoded.word_ids[1:-1].tolist() == wanted.word_ids()


def test_trained_vocabulary_depends_on_the_captions_alone(tokenizer):
    assert load_tokenizer("captions", reversed(CAPTIONS * 2)).digest == tokenizer.digest
    assert load_tokenizer("captions", CAPTIONS[:7] * 2).digest != tokenizer.digest


def test_words_keep_their_pieces_together(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "'", "s", ",", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    encoded = load_tokenizer(str(tmp_path / "vocab.txt")).encode("Playing, a play's ##ing")
    assert encoded.word_ids.tolist() == [-1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, -1]
    # "##" in a caption is two characters, never the inside of a word.
    assert encoded.ids.tolist() == [2, 5, 6, 9, 10, 5, 7, 8, 1, 1, 1, 3]


@pytest.mark.parametrize(
    "lines, message",
    [
        (["a", "b"], r"not a BERT vocabulary, \[PAD\]"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "a"], "once"),
    ],
)
def test_vocabulary_files_that_are_none(tmp_path, lines, message):
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(str(tmp_path))


PIECES = {piece: number for number, piece in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"))}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaa"}


def word_pieces(unknown="[UNK]", **more):
    return {"model": {"type": "WordPiece", "unk_token": unknown, "vocab": PIECES | more}}


def steps(*normalizers):
    return {"normalizer": {"type": "Sequence", "normalizers": list(normalizers)}}


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        (steps({"type": "NFKC"}, SPACES) | {"pre_tokenizer": {"type": "Metaspace"}}, None),
        ({"model": {"type": "Unigram", "unk_id": 1, "vocab": [[piece, -1.0] for piece in PIECES]}}, None),
        ({"model": {"type": "BPE", "vocab": PIECES | {"ab": 7}, "merges": ["a b"]}}, None),
        (word_pieces(c=10**9), "each of 0 to 7 once"),
        (word_pieces(c=6), "each of 0 to 7 once"),
        (word_pieces("[NO]"), r"lacks '\[NO\]'"),
        (word_pieces(**{"w" * 9999: 7}), "1000 characters"),
        ({"added_tokens": [{"id": 9, "content": "a"}]}, "other numbers"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "'FixedLength' is not one of"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}}, "not known here"),
        (steps(*[GROWS] * 4),
         "over 16 times as long"),
        (steps(*[{"type": "Lowercase"}] * 99), "1 to 32 steps"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////fwAA"}}, "cut off"),
    ],
)  # fmt: skip
def test_a_tokenizer_json_is_made_of_known_parts(change, message):
    """Others make the library panic, or take all memory or time."""
    content = word_pieces() | change
    if message is None:
        check_tokenizer_json(content)
    else:
        with pytest.raises(ValueError, match=message):
            check_tokenizer_json(content)


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_tokenizer_is_bounded_before_anything_is_built(tmp_path, monkeypatch, prefix):
    """A repository of the hub too, whose name may be a folder's."""
    hostile = word_pieces() | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(hostile))
    for loader in (AutoTokenizer, PreTrainedTokenizerFast):
        monkeypatch.setattr(loader, "from_pretrained", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(ValueError, match="'FixedLength' is not one of"):
        load_tokenizer(f"{prefix}{tmp_path}")


def test_unknown_tokenizer_spec():
    with pytest.raises(ValueError, match="'hf:<repository>', nor 'captions'"):
        load_tokenizer("nowhere/vocab.txt")
