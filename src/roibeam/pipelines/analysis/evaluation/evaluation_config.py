"""How an evaluation is made: plain settings, checked without torch."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.common.device_choice import check_device_name
from roibeam.pipelines.data.region_names import check_background


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated, and how.

    Attributes:
        seed: of masks, mismatched images, the subset of images, and the draws of the intervals.
        batch_size: captions, and pairs of retrieval, at once.
        max_images: a subset of so many images with their captions; 0 = all.
        max_regions: of an image, those with the best scores; 0 = all.
        retrieval: whether all pairs are scored.
        folds: parts of the images that are searched by themselves.
        task: number of the task token, for a model with such tokens.
        background: where the model's classes have it: first, last or none; None: last.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:<n>".
    """

    seed: int = 0
    batch_size: int = 64
    max_images: int = 0
    max_regions: int = 0
    retrieval: bool = True
    folds: int = 1
    task: int | None = None
    background: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("batch_size", 1), ("max_images", 0), ("max_regions", 0), ("folds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"EvaluationConfig: {name} must be at least {least}, got {getattr(self, name)}")
        check_background(self.background)
        check_device_name(self.device)
        if self.folds > 1 and not self.retrieval:
            raise ValueError("folds are of retrieval; leave them out, or retrieval in")
