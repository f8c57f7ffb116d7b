"""How samples become batches, as settings without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataConfig:
    """How samples become batches, whatever the system.

    Attributes:
        batch_size: captions per micro-batch and process; rows of text alone come on top.
        workers: processes that make batches ahead; 0 makes them in the one that trains. Changes nothing but the time.
        share: of the captioned images, drawn by `share_seed`; the others are left out. A smaller share lies inside a
            larger one of the same seed, so that runs on 25, 50 and 100 % differ in what is added only.
        fixed_masks: every epoch, and evaluation, draws the masks of epoch 0: for checking that a model can over-fit.
        texts_per_caption: rows of text alone for each caption, in a run with a text corpus.
        max_tokens: words and regions of a micro-batch, padding counted; 0 = any number. The captions of a step stay the
            same; those of alike lengths share a micro-batch, as many as the budget allows and at most `batch_size`.
        validation_captions: of a run with held-out captions, how many of them each evaluation asks about, about: all
            of as many images, the same ones each time; 0 = all.
        validation_retrieval: of their images, how many each evaluation searches through with all of their captions,
            both ways; the cost grows with the square. 0 = no search.
    """

    batch_size: int = 64
    workers: int = 0
    share: float = 1.0
    share_seed: int = 0
    fixed_masks: bool = False
    texts_per_caption: float = 1.0
    max_tokens: int = 0
    validation_captions: int = 1000
    validation_retrieval: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"DataConfig: batch_size must be at least 1, got {self.batch_size}")
        if self.max_tokens < 0:
            raise ValueError(f"DataConfig: max_tokens must not be negative, got {self.max_tokens}")
        if self.validation_captions < 0:
            raise ValueError(f"DataConfig: validation_captions must not be negative, got {self.validation_captions}")
        if self.validation_retrieval < 0 or self.validation_retrieval == 1:
            raise ValueError(
                f"DataConfig: validation_retrieval must be 0, or 2 images or more, got {self.validation_retrieval}"
            )
        if self.workers < 0:
            raise ValueError(f"DataConfig: workers must not be negative, got {self.workers}")
        if not 0 < self.share <= 1:
            raise ValueError(f"DataConfig: share must be above 0 and at most 1, got {self.share}")
        if self.share_seed < 0:
            raise ValueError(f"DataConfig: share_seed must not be negative, got {self.share_seed}")
        if not 0.001 <= self.texts_per_caption <= 1000:
            raise ValueError(
                f"DataConfig: texts_per_caption must be in 0.001..1000, got {self.texts_per_caption}; for none, name "
                f"no text corpus"
            )
