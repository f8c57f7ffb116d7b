"""A vocabulary that lacks the words of the texts: all of them become [UNK], which a model soon always gets right."""

import json
from pathlib import Path

import pytest
from text_training import run_on_text
from tiny_commands import Cli, one_line, tiny_run

from roibeam.pipelines.training.model_files.tokenizer import evenly, load_tokenizer, unknown_notes

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
    done = roibeam(*command)
    assert done.code == 0, done.err


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
