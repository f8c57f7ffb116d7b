"""What region classes are called, by a detector and by a model that counts background."""

from __future__ import annotations

from collections.abc import Sequence


class Names:
    """Names of region classes, by the number that a model or a detector gives.

    Args:
        classes: of the detector, foreground only; empty for none.
        background_first: whether a model's class 0 is background, as in the published stores of bottom-up attention;
            else background is the last, as in ours.
    """

    def __init__(self, classes: Sequence[str], *, background_first: bool = False) -> None:
        self.classes = tuple(classes)
        self.background_first = background_first

    def of_detector(self, class_id: int) -> str:
        return self.classes[class_id] if class_id < len(self.classes) else f"class {class_id}"

    def of_model(self, label: int, num_labels: int) -> str:
        """
        Args:
            num_labels: K of the model; one more than there are classes where background is one.
        """
        if self.background_first:
            return "background" if label == 0 else self.of_detector(label - 1)
        if label == num_labels - 1 and num_labels == len(self.classes) + 1:
            return "background"
        return self.of_detector(label)
