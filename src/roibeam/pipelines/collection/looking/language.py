"""The language of a page: py3langid, whose model ships in its wheel (97 languages)."""

from __future__ import annotations

from functools import cache
from typing import Any

from roibeam.pipelines.collection.thresholds import LanguageThresholds


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def page_language(blocks: tuple[str, ...], limits: LanguageThresholds) -> tuple[str, float] | None:
    """(ISO 639-1 code, probability 0..1) of the longest blocks of visible text; None where there is too little text.

    Menus are short: the longest blocks are what the page is written in.
    """
    chosen: list[str] = []
    left = limits.read_chars
    for block in sorted(blocks, key=len, reverse=True):  # a stable order: equal lengths stay as on the page
        if left <= 0:
            break
        chosen.append(block[:left])
        left -= len(block)
    text = " ".join(chosen)
    if len(text) < limits.min_chars:
        return None
    code, score = _identifier().classify(text)
    return str(code), round(float(score), 4)
