"""Limits of a tokenizer.json. It may come from a stranger, and the library that reads it panics, or takes all time and
memory, on some; so parts are allowed by name, those of the tokenizers of BERT, RoBERTa, ALBERT, XLM-R and their kind.
"""

from __future__ import annotations

import base64
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.messages import first_line, printable

MAX_TOKENIZER_BYTES = 64 * 2**20
_MOST_STEPS, _MOST_GROWTH = 32, 16  # of one kind of part; how much longer they may make a text
_MOST_PIECES = 2**20  # XLM-R has a quarter of them
_LONGEST_PIECE, _LONGEST_MARK = 1000, 16  # characters
_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
_PARTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "normalizer": frozenset(
            "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip "
            "StripAccents".split()
        ),
        "pre_tokenizer": frozenset(
            "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Split UnicodeScripts "
            "Whitespace WhitespaceSplit".split()
        ),
        "post_processor": frozenset("BertProcessing ByteLevel RobertaProcessing TemplateProcessing".split()),
        "decoder": frozenset(
            "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece WordLevel".split()
        ),
    }
)
_STEPS_OF_SEQUENCE = ("normalizers", "pretokenizers", "processors", "decoders")
# Expressions can take for ever; these are those of ALBERT, XLM-R and DeBERTa.
_EXPRESSIONS = frozenset((" {2,}", r"\s{2,}|[\n\r\t]"))


def as_refusal(error: BaseException, named: str) -> BaseException:
    """The exception to raise for an error of the library, whose panics are no `Exception`; `named`: the file."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        return error
    reason = printable(first_line(error), 300)
    return ValueError(reason if reason.startswith(named) else f"{named}: no tokenizer that can be read: {reason}")


def check_tokenizer_json(content: Mapping[str, Any]) -> None:
    for part, known in _PARTS.items():
        growth = 1.0
        for step in _steps(part, content.get(part)):
            if step.get("type") not in known:
                raise ValueError(
                    f"its {part} {reprlib.repr(step.get('type'))} is not one of {', '.join(sorted(known))}"
                )
            growth *= _growth(part, step)
            if step["type"] == "Precompiled":
                # A SentencePiece table with a length beyond its content: memory would be reserved for it.
                charsmap = base64.b64decode(step.get("precompiled_charsmap") or "")
                if int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
                    raise ValueError("its precompiled_charsmap is cut off")
        if growth > _MOST_GROWTH:
            raise ValueError(f"its {part} makes a text over {_MOST_GROWTH} times as long")
    model = content.get("model")
    if not isinstance(model, Mapping) or model.get("type", "BPE") not in _MODELS:
        raise ValueError(f"its model is not one of {', '.join(_MODELS)}")
    tokens = content.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(each, Mapping) for each in tokens):
        raise ValueError("its added_tokens are no list of tokens")
    _check_model(model, {each.get("content"): each.get("id") for each in tokens})


def check_pieces(pieces: Iterable[object], path: Path | None = None) -> None:
    """Raises ValueError for a piece that is no text, or endless."""
    for piece in pieces:
        if not isinstance(piece, str) or len(piece) > _LONGEST_PIECE:
            named = "" if path is None else f"{path}: "
            raise ValueError(f"{named}a piece {reprlib.repr(piece)} is no text of at most {_LONGEST_PIECE} characters")


def _steps(part: str, found: object) -> Iterator[Mapping[str, Any]]:
    """Steps of a part; a sequence gives its own one by one."""
    waiting, count = [] if found is None else [found], 0
    while waiting:
        step, count = waiting.pop(), count + 1
        if not isinstance(step, Mapping) or count > _MOST_STEPS:
            raise ValueError(f"its {part} is not made of 1 to {_MOST_STEPS} steps")
        inner = next((step[name] for name in _STEPS_OF_SEQUENCE if name in step), None)
        if step.get("type") != "Sequence":
            yield step
        elif isinstance(inner, list):
            waiting += inner[: _MOST_STEPS + 1]


def _growth(part: str, step: Mapping[str, Any]) -> float:
    """Largest factor by which a step may lengthen a text."""
    added = step.get("content" if step["type"] != "Prepend" else "prepend", "")
    if step["type"] not in ("Replace", "Split", "Prepend"):
        return 1.0
    if not isinstance(added, str) or len(added) > _LONGEST_MARK:
        raise ValueError(f"its {part} {step['type']} puts in {reprlib.repr(added)}; at most {_LONGEST_MARK} characters")
    if step["type"] == "Prepend":
        return 1.0
    pattern = step.get("pattern")
    found = pattern if isinstance(pattern, Mapping) else {}
    if found.keys() == {"Regex"} and found["Regex"] in _EXPRESSIONS:
        return max(len(added), 1)
    if found.keys() != {"String"} or not isinstance(found["String"], str) or not found["String"]:
        raise ValueError(f"its {part} {step['type']} has the pattern {reprlib.repr(pattern)}, which is not known here")
    return max(len(added) / len(found["String"]), 1.0)


def _check_model(model: Mapping[str, Any], added: Mapping[str, int]) -> None:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list) and all(isinstance(each, list) and each for each in vocabulary):  # Unigram
        vocabulary = {each[0]: number for number, each in enumerate(vocabulary) if isinstance(each[0], str)}
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ValueError("its model has no vocabulary")
    if len(vocabulary) + len(added) > _MOST_PIECES:
        raise ValueError(f"it has over {_MOST_PIECES:,} pieces")
    check_pieces(vocabulary.keys() | added.keys())
    numbers = [*vocabulary.values(), *(number for piece, number in added.items() if piece not in vocabulary)]
    if any(vocabulary.get(piece, number) != number for piece, number in added.items()):
        raise ValueError("its added_tokens have other numbers than its vocabulary gives them")
    if not all(type(number) is int for number in numbers):
        raise ValueError("the numbers of its pieces are not all whole")
    if len(set(numbers)) < len(numbers) or not 0 <= min(numbers) <= max(numbers) < len(numbers):
        raise ValueError(
            f"the numbers of its {len(numbers):,} pieces are not each of 0 to {len(numbers) - 1:,} once: "
            f"{reprlib.repr(min(numbers))} to {reprlib.repr(max(numbers))}"
        )
    unknown = model.get("unk_token")
    if model.get("type") in ("WordPiece", "WordLevel") and unknown not in vocabulary:
        raise ValueError(f"its vocabulary lacks {reprlib.repr(unknown)}, which unknown words become")
    longest = model.get("max_input_chars_per_word", 1)
    if not 0 < longest <= _LONGEST_PIECE:
        raise ValueError(f"max_input_chars_per_word is {reprlib.repr(longest)}; it must be 1 to {_LONGEST_PIECE:,}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(model.get(name) or "") > _LONGEST_MARK:
            raise ValueError(f"{name} has over {_LONGEST_MARK} characters")
