"""The splits of VQA v2, and the part of the validation split that ViLBERT's releases train without.

Its "minival" are the 3,000 validation questions of the highest ids (vqa_dataset.py, vilbert_beta). Other questions
about the same images stay in the training part, so figures of minival are higher than those of unseen images.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.pipelines.finetuning.scored_tasks import MINIVAL

WHOLE, WITHOUT_MINIVAL, ONLY_MINIVAL = "whole", "without minival", "only minival"
# Split -> official files that it is made from, and which part of each.
PARTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "train": (("train", WHOLE),),
        "val": (("val", WHOLE),),
        "test": (("test", WHOLE),),
        "test-dev": (("test-dev", WHOLE),),
        "train+val": (("train", WHOLE), ("val", WHOLE)),
        "train+val-minival": (("train", WHOLE), ("val", WITHOUT_MINIVAL)),
        MINIVAL: (("val", ONLY_MINIVAL),),
    }
)
TRAINED = ("train", "train+val", "train+val-minival")


def judged_split(train: str) -> str | None:
    """What a run that trains on this split can be judged on, and has not been trained on; None for nothing."""
    return {"train": "val", "train+val-minival": MINIVAL}.get(train)


def overlap_note(split: str, train: str) -> str | None:
    """What must be said of a split that is read for a model that is trained on the other."""
    if split == MINIVAL and train == "train+val":
        return "minival lies inside train+val, on which the model is trained: its figure is no validation figure"
    if split == "train+val":
        return "train+val holds minival too: no figure of val or of minival is a validation figure of this model"
    if split == MINIVAL and train == "train+val-minival":
        return "minival: other questions about its images are trained on, so that its figure is high"
    return None
