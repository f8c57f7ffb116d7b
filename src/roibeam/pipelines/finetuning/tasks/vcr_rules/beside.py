"""What VCR's rows teach beside the choice: classes of boxes and hidden words (VL-BERT)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from roibeam.pipelines.data.datasets.vcr import OBJECT_CLASSES, object_classes, read_object_names
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import BesideTask, BoxClasses
from roibeam.pipelines.finetuning.tasks.vcr_rules.regions import MASKED, NO_LOSS

WHOLE_IMAGE = "background"  # name of the class of the whole image, which is class 0


class BesideOptions(Protocol):
    """The fields of `VcrOptions` that say what is learned beside."""

    @property
    def object_loss(self) -> str: ...

    @property
    def object_loss_weight(self) -> float: ...

    @property
    def hidden_boxes(self) -> float: ...

    @property
    def told_classes(self) -> bool: ...

    @property
    def object_names(self) -> str: ...

    @property
    def hidden_words(self) -> float: ...

    @property
    def word_loss_weight(self) -> float: ...


def vcr_beside(options: BesideOptions) -> BesideTask | None:
    """None where nothing is learned beside.

    Raises:
        ValueError: for a file of names that cannot be read.
    """
    if options.object_loss == NO_LOSS and not options.hidden_words:
        return None
    if options.object_loss == NO_LOSS:
        return BesideTask(hidden_words=options.hidden_words, word_weight=options.word_loss_weight)
    names = _names(options)

    def classes(group: TaskGroup) -> np.ndarray:
        return object_classes(group.facts["objects"], group.id, names)

    return BesideTask(
        class_names=(WHOLE_IMAGE, *names),
        classes=classes,
        hidden_regions=options.hidden_boxes if options.object_loss == MASKED else 0.0,
        region_weight=options.object_loss_weight,
        hidden_words=options.hidden_words,
        word_weight=options.word_loss_weight,
    )


def vcr_told_classes(options: BesideOptions) -> BoxClasses | None:
    """None where the model is told no classes.

    Raises:
        ValueError: for a file of names that cannot be read.
    """
    if not options.told_classes:
        return None
    names = _names(options)
    return BoxClasses(1 + len(names), lambda group: object_classes(group.facts["objects"], group.id, names), names)


def _names(options: BesideOptions) -> tuple[str, ...]:
    return read_object_names(options.object_names) if options.object_names else OBJECT_CLASSES
