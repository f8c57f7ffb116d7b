"""What region classes are called, by a detector and by a model that counts background."""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.features.exchange.reading import BACKGROUNDS


def check_background(place: str | None) -> None:
    """Raises ValueError for what is no place of background among classes; None is one that is not given."""
    if place not in (None, *BACKGROUNDS):
        raise ValueError(f"--background {place!r}: choose one of {', '.join(BACKGROUNDS)}")


class Names:
    """Names of region classes, by the number that a model or a detector gives.

    Args:
        classes: of the detector, foreground only; empty for none.
        background: where a model's classes have it: "first", as in the published stores of bottom-up attention, "last",
            as in ours, or "none"; None: last, where it has one class more than there are names.
    """

    def __init__(self, classes: Sequence[str], *, background: str | None = None) -> None:
        check_background(background)
        self.classes, self.background = tuple(classes), background

    def of_detector(self, class_id: int) -> str:
        return self.classes[class_id] if class_id < len(self.classes) else f"class {class_id}"

    def of_model(self, label: int, num_labels: int) -> str:
        """
        Args:
            num_labels: K of the model; one more than there are classes where background is one.
        """
        if self.background == "first":
            return "background" if label == 0 else self.of_detector(label - 1)
        counts_background = self.background != "none" and num_labels == len(self.classes) + 1
        if label == num_labels - 1 and (counts_background or self.background == "last"):
            return "background"
        return self.of_detector(label)
