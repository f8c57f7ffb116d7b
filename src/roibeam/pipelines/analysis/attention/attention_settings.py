"""What is asked of an analysis: plain settings, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.data.datasets.marked_sentences import OWN, RELEASE

SOURCE_WORDS = ("last", "first", "mean", "head")
# Where a phrase stands, and which box is right.
RULES: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {"any": (OWN, "any"), "merged": (OWN, "merged"), "release": (RELEASE, "any")}
)


@dataclass(frozen=True, kw_only=True)
class AttentionRequest:
    """What is analysed on what; as of `roibeam attention`.

    Attributes:
        checkpoint: run folder, model folder or official checkpoint.
        store: folder of the store.
        entities: folder of Flickr30k Entities.
        out: folder for attention.json and pictures, not there yet or empty; None is as of `answer_place`, "attention".
        split: a list beside Sentences; None takes all images.
        parses: CoNLL file, or `SPACY` of spacy_parses.py; None asks about phrases alone.
        rules: one of `RULES`.
        word: one of `SOURCE_WORDS`, see `questions.Questioner`.
        images: of a model that was trained end to end, and for pictures: folder of the photos.
        min_match: share of the images (0..1) that the store must have.
        max_regions: of an image, those with the best scores; 0 = all.
        max_images: a subset of so many, drawn by `seed`; 0 = all.
        seed: of the subset, the halves and the intervals.
        batch_size: captions at once.
        task: number of the task token, for a model that has such tokens.
        tokenizer, options: as of `EvaluateRequest`.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:<n>".
        threads: of the CPU; None leaves torch's choice.
    """

    checkpoint: str
    store: str
    entities: str
    out: Path | None = None
    split: str | None = None
    parses: Path | None = None
    rules: str = "any"
    word: str = "last"
    images: str | None = None
    min_match: float = 1.0
    max_regions: int = 0
    max_images: int = 0
    seed: int = 0
    batch_size: int = 16
    task: int | None = None
    tokenizer: str | None = None
    options: Path | None = None
    device: str = "auto"
    threads: int | None = None

    def asked(self) -> dict[str, Any]:
        """For the results."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
