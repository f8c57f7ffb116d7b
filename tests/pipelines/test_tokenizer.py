"""Captions to pieces: vocabularies of all kinds, whole words, the cut of transformers; and one that lacks the words of
the texts, which all become [UNK], so that a model soon always gets them right."""

import json
from pathlib import Path

import pytest
from captioned_records import CAPTIONS
from text_training import run_on_text
from tiny_commands import Cli, ok, one_line, tiny_run
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roibeam.pipelines.training.model_files.tokenizer import evenly, load_tokenizer, unknown_notes
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


def test_vocabulary_files_that_are_none(tmp_path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for lines, message in ((["a", "b"], r"not a BERT vocabulary, \[PAD\]"), ([*special, "a", "a"], "once")):
        (tmp_path / "vocab.txt").write_text("\n".join(lines))
        with pytest.raises(ValueError, match=message):
            load_tokenizer(str(tmp_path))
    with pytest.raises(ValueError, match="'hf:<repository>', nor 'captions'"):
        load_tokenizer("nowhere/vocab.txt")


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
        (steps(*[GROWS] * 4), "over 16 times as long"),
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


# --- a vocabulary that lacks the words ---


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RUSSIAN = ["собака бежит по траве", "собака спит", "собака бежит"]


def vocabulary(path: Path, *words: str) -> Path:
    path.write_text("\n".join([*SPECIAL, *words]))
    return path


def test_the_share_of_unknown_pieces_is_told_or_stops(tmp_path: Path) -> None:
    german = load_tokenizer(str(vocabulary(tmp_path / "vocab.txt", "hund", "katze", "haus", "baum")))
    with pytest.raises(ValueError, match=r"c\.json: .*vocab.txt.* 100 % .* собака, бежит, .*--tokenizer"):
        unknown_notes(german, "c.json", RUSSIAN, stops=True)
    assert len(unknown_notes(german, "c.json", RUSSIAN, stops=False)) == 1
    mixed = ["hund katze haus baum"] * 24 + ["hund katze собака собака"]  # 2 of 100 pieces
    (note,) = unknown_notes(german, "c.json", mixed, stops=True)
    assert note.startswith("c.json: ") and "2 % of the pieces, such as собака:" in note
    assert unknown_notes(german, "c.json", ["hund katze haus baum"] * 49 + ["hund собака"], stops=True) == []
    assert unknown_notes(german, "c.json", [], stops=True) == []


def test_texts_are_looked_at_from_first_to_last() -> None:
    assert evenly(range(10), 20) == list(range(10))
    assert evenly(range(10_000), 4) == [0, 2_500, 5_000, 7_500]


def test_a_run_with_a_wrong_vocabulary_does_not_begin(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    """Its folder keeps no tokenizer, so the same command with the right one begins."""
    wrong = vocabulary(tmp_path / "vocab.txt", "hund", "katze", "haus", "baum")
    command = ("pretrain", tmp_path / "run", "--store", store[0], "--captions", store[1], *tiny_run(steps=1))
    line = one_line(roibeam(*command, "--tokenizer", wrong))
    assert line.startswith(f"roibeam: {store[1]}: ") and "100 % of the pieces" in line
    assert not (tmp_path / "run" / "tokenizer").exists()
    ok(roibeam(*command))


def test_a_text_corpus_and_a_run_that_goes_on(tmp_path: Path) -> None:
    """A run that was begun goes on, with a note."""
    books, wrong = tmp_path / "books.txt", vocabulary(tmp_path / "vocab.txt", "hund")
    books.write_text("\n".join(RUSSIAN * 4) + "\n")
    with pytest.raises(ValueError, match=r"the text corpus: .* 100 %"):
        run_on_text(books, tmp_path / "run", steps=2, tokenizer_spec=str(wrong))
    load_tokenizer(str(wrong)).save(tmp_path / "run" / "tokenizer")
    done = run_on_text(books, tmp_path / "run", steps=2, resume=True)
    (note,) = done.notes
    assert note in json.loads((tmp_path / "run" / "config.json").read_text())["recorded"]["notes"]
    assert done.evaluation["text_only_word_accuracy"] is not None
