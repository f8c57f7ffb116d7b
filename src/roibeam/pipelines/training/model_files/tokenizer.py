"""Tokenizer: captions to word pieces with word boundaries, and words that its vocabulary lacks.

The vocabulary is on disk, from the Hub, or made from the captions. Words that it lacks become [UNK]; a loss over them
looks learned, so a run warns of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from roibeam.features.folders.durable_files import naming_file
from roibeam.messages import printable
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.model_files.model_folder import tokenizer_file
from roibeam.pipelines.training.model_files.tokenizer_json import (
    MAX_TOKENIZER_BYTES,
    as_refusal,
    check_pieces,
    check_tokenizer_json,
)
from roibeam.pipelines.training.model_files.vocabulary_training import SPECIAL_TOKENS, add_bert_rules, made_vocabulary
from roibeam.pipelines.training.run_folder.files import WRITING, check_run_file, put_run_file

MADE_FROM_CAPTIONS = "captions"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_KEPT_WORDS = 100_000  # of the texts of one data set: some 20 MB


@dataclass(frozen=True, eq=False)
class EncodedCaption:
    """One caption between the tokenizer's first and last special token.

    Attributes:
        ids: (T,) int64.
        word_ids: (T,) int64, pieces of one word share a number, counted from 0; -1 for the special tokens.
    """

    ids: np.ndarray
    word_ids: np.ndarray


class CaptionTokenizer:
    """A fast Hugging Face tokenizer with mask, padding, first and last tokens, reduced to the needs of captions;
    `description` says where it came from."""

    def __init__(self, tokenizer: Any, description: str) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(f"tokenizer {description}: needs a fast tokenizer, others do not give word boundaries")
        self.description = description
        # The wrapped tokenizer is used directly: the wrapper is slower than a cut, and sets these two at every call.
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._tokenizer = tokenizer
        self.cls_id = self._special(tokenizer.cls_token_id, "first ([CLS])")
        self.sep_id = self._special(tokenizer.sep_token_id, "last ([SEP])")
        self.mask_id = self._special(tokenizer.mask_token_id, "mask ([MASK])")
        self.pad_id = self._special(tokenizer.pad_token_id, "padding ([PAD])")
        self.vocab_size = len(tokenizer)
        if (largest := max(self.vocabulary.values())) >= self.vocab_size:
            raise ValueError(f"tokenizer {description}: the number {largest} of a piece is not below {self.vocab_size}")
        self._unknown_id: int | None = tokenizer.unk_token_id
        self._pieces_of: dict[str, np.ndarray] = {}

    def encode(self, caption: str) -> EncodedCaption:
        encoding = self._cut(caption)
        words = [-1 if word is None else word for word in encoding.word_ids]
        return EncodedCaption(
            ids=np.array([self.cls_id, *encoding.ids, self.sep_id], dtype=np.int64),
            word_ids=np.array([-1, *words, -1], dtype=np.int64),
        )

    def _cut(self, text: str) -> Any:
        try:
            return self._backend.encode(text, add_special_tokens=False)
        except BaseException as error:
            raise as_refusal(error, f"tokenizer {self.description}") from error

    def pieces(self, text: str) -> np.ndarray:
        """(n,) int64, the pieces between the special tokens of `encode`; read-only.

        Single words repeat in texts that come cut into words: each is cut once.
        """
        found = self._pieces_of.get(text)
        if found is None:
            found = np.array(self._cut(text).ids, np.int64)
            found.flags.writeable = False
            if " " not in text and len(self._pieces_of) < _KEPT_WORDS:
                self._pieces_of[text] = found
        return found

    def first_pieces(self, caption: str, words: Sequence[int]) -> np.ndarray:
        """(n,) int64, position of each word's first piece in `encode`'s; words are separated by white space; 0 for a
        word without pieces."""
        pieces = self.pieces_of_words(caption)
        return np.array([pieces[word].start if pieces[word] else 0 for word in words], np.int64)

    def pieces_of_words(self, caption: str) -> list[range]:
        """Positions of each word's pieces in `encode`'s; words are separated by white space; empty for a word without
        pieces."""
        pieces = np.array(self._cut(caption).offsets, np.int64).reshape(-1, 2)
        found = []
        for match in re.finditer(r"\S+", caption):
            start, end = match.span()
            first, last = np.searchsorted(pieces[:, 1], start, side="right"), np.searchsorted(pieces[:, 0], end)
            found.append(range(int(first) + 1, int(last) + 1))
        return found

    def count_pieces(self, caption: str) -> int:
        """Length of `encode`'s result, in a fraction of the time."""
        return len(self._cut(caption).ids) + 2

    def unknown_words(self, text: str) -> tuple[int, list[str]]:
        """Number of pieces that `encode` puts between the special tokens, and the unknown words among them."""
        encoding = self._cut(text)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        return len(encoding.ids), [text[start:end] for piece, (start, end) in places if piece == self._unknown_id]

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Number of each piece."""
        return self._backend.get_vocab()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of rules and vocabulary: equal for a tokenizer and its saved copy."""
        return hashlib.sha256(self._tokenizer.backend_tokenizer.to_str().encode("utf-8")).hexdigest()

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(piece) for piece in ids])

    def piece(self, number: int) -> str:
        """One piece as the vocabulary writes it; "piece <number>" for rows of a model beyond the vocabulary."""
        found = self._tokenizer.convert_ids_to_tokens(number) if number < self.vocab_size else None
        return found if isinstance(found, str) else f"piece {number}"

    def save(self, folder: Path, *, of_run: bool = False) -> None:
        """Writes tokenizer.json and its companions: a folder that `load_tokenizer` and `AutoTokenizer` read.

        It appears whole or not at all for other processes; an older one is replaced. `of_run` lists it among the sums
        of the run's folder, which contains it.
        """
        aside = folder.with_name(f"{WRITING}{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        with naming_file(folder):
            self._tokenizer.save_pretrained(str(aside))
        if of_run:
            put_run_file(aside, folder)
            return
        if folder.is_dir():
            shutil.rmtree(folder)
        aside.rename(folder)

    def _special(self, token_id: int | None, name: str) -> int:
        if token_id is None:
            raise ValueError(f"tokenizer {self.description}: has no {name} token; masked-word training needs one")
        return token_id


def load_tokenizer(spec: str, captions: Iterable[str] = ()) -> CaptionTokenizer:
    """The tokenizer that `spec` names. Raises ValueError if `spec` is none of these.

    Args:
        spec: one of
            a file `vocab.txt` of BERT (one piece per line; lower-casing unless the vocabulary has upper-case pieces);
            a folder with tokenizer.json (as `CaptionTokenizer.save` writes) or vocab.txt;
            "hf:<repository>", fetched by transformers;
            "captions": a WordPiece vocabulary of at most 10,000 lower-case pieces that occur twice or more, made from
            `captions`. The same captions in any order give the same vocabulary.
        captions: only read for "captions".
    """
    if spec == MADE_FROM_CAPTIONS:
        return _from_vocabulary(made_vocabulary(captions), MADE_FROM_CAPTIONS)
    if spec.startswith("hf:"):
        try:
            repository = spec.removeprefix("hf:")
            for name in ("tokenizer.json", *_BESIDE):
                file = cached_file(repository, name, _raise_exceptions_for_missing_entries=False)
                if file is not None:
                    _check_file(Path(file))
            found = AutoTokenizer.from_pretrained(repository, trust_remote_code=False)
            if found.is_fast:  # made from a vocabulary
                check_tokenizer_json(json.loads(found.backend_tokenizer.to_str()))
            return CaptionTokenizer(found, spec)
        except BaseException as error:
            refused = as_refusal(error, f"tokenizer {spec}")
            if not isinstance(refused, ValueError):
                raise
            raise ValueError(f"{refused}; a local vocab.txt or tokenizer folder works too") from None
    path = tokenizer_file(spec)
    if Path(spec).is_dir():
        check_run_file(Path(spec))
        if path.name == "tokenizer.json":
            try:
                for name in (path.name, *_BESIDE):
                    if (path.parent / name).exists():
                        _check_file(path.parent / name)
                return CaptionTokenizer(PreTrainedTokenizerFast.from_pretrained(str(path.parent)), path.parent.name)
            except BaseException as error:
                raise as_refusal(error, str(path)) from error
    return _from_vocabulary(_read_vocabulary(path), path.name)


def _check_file(path: Path) -> None:
    """Bounds a tokenizer's file before anything is built from it."""
    content = read_json_object(path, max_bytes=MAX_TOKENIZER_BYTES)
    if path.name == "tokenizer.json":
        check_tokenizer_json(content)


def _read_vocabulary(path: Path) -> dict[str, int]:
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ValueError(f"{path}: more than {MAX_TOKENIZER_BYTES:,} bytes; is it a BERT vocabulary?")
    pieces = path.read_text("utf-8").rstrip("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): index for index, piece in enumerate(pieces)}
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise ValueError(f"{path}: not a BERT vocabulary, {', '.join(missing)} missing among {len(pieces)} lines")
    if len(vocabulary) != len(pieces):
        raise ValueError(f"{path}: {len(pieces) - len(vocabulary)} lines occur more than once, so ids are not clear")
    check_pieces(vocabulary, path)
    return vocabulary


def _from_vocabulary(vocabulary: dict[str, int], description: str) -> CaptionTokenizer:
    lowercase = not any(piece != piece.lower() for piece in vocabulary if not piece.startswith("["))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    add_bert_rules(tokenizer, lowercase=lowercase)
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    return CaptionTokenizer(fast, description)


MOST_TEXTS = 2_000  # some tenths of a second
NOTED, STOPS = 0.01, 0.50  # shares of the pieces
_NAMED = 3

Text = TypeVar("Text")


def unknown_notes(tokenizer: CaptionTokenizer, where: str, texts: Sequence[str], *, stops: bool) -> list[str]:
    """A line if more than 1 % of the pieces of the texts are [UNK], with the commonest such words; ValueError if more
    than half are and `stops`. `MOST_TEXTS` at even distances are read; `where` is their source."""
    pieces, unknown = 0, Counter[str]()
    for text in evenly(texts, MOST_TEXTS):
        number, words = tokenizer.unknown_words(text)
        pieces += number
        unknown.update(words)
    share = unknown.total() / max(pieces, 1)
    if share <= NOTED:
        return []
    named = ", ".join(printable(word, 40) for word, _ in unknown.most_common(_NAMED))
    line = (
        f"{where}: the tokenizer ({tokenizer.description}) does not know {100 * share:.0f} % of the pieces, such as "
        f"{named}"
    )
    if stops and share > STOPS:
        raise ValueError(
            f"{line}: a model would learn [UNK]; give the vocabulary of these texts' language with --tokenizer"
        )
    return [f"{line}: they are all read as one word, [UNK]"]


def evenly(items: Sequence[Text], most: int) -> list[Text]:
    """At most `most` items at even distances, in order."""
    number = min(most, len(items))
    return [items[place * len(items) // number] for place in range(number)]
