"""Who judges pictures and pairs: trained models, handed in. Without one its step is off, and the run says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roibeam.pipelines.collection.pair import Pair, Picture


class PictureJudge(Protocol):
    """Natural photo or not (step 5); `roibeam collect train-images` makes one.

    Attributes:
        threshold: a picture with a lower score is dropped as "not natural".
        fingerprint: digest of the model's content: a rerun with another model does the step again.
    """

    threshold: float
    fingerprint: str

    def score(self, pictures: Sequence[Picture]) -> Sequence[float]:
        """One score 0..1 for each picture, in order; the same whatever stands beside it. Reads `Picture.path`."""
        ...


class PairJudge(Protocol):
    """Does the text describe the image (step 6)? `roibeam collect train-pairs` makes one.

    Attributes:
        threshold: a pair with a lower score is dropped as "low score".
        fingerprint: see `PictureJudge`.
    """

    threshold: float
    fingerprint: str

    def score(self, pairs: Sequence[Pair]) -> Sequence[float]:
        """One score 0..1 for each pair, in order; the same whatever stands beside it.

        All candidate texts of a picture come as pairs of their own, with the same `Pair.picture`, one after another.
        """
        ...


class Judges(Protocol):
    """Both judges as a run is asked for them: plain and picklable, opened on each worker.

    Attributes:
        has_picture_judge, has_pair_judge: whether there is one, known without opening it.
    """

    @property
    def has_picture_judge(self) -> bool: ...

    @property
    def has_pair_judge(self) -> bool: ...

    def picture_judge(self) -> PictureJudge | None:
        """The judge of pictures; None for none."""
        ...

    def pair_judge(self) -> PairJudge | None:
        """The judge of pairs; None for none."""
        ...
