"""Names of losses, accuracies and recalls for people, and the format of their numbers."""

from dataclasses import dataclass

# Baselines of numbers, for people.
CHANCE = "chance"
WORDS_ALONE = "words alone"  # counts of neighbouring words without any picture

_TITLES = {
    "masked_words": "Masked words",
    "masked_regions": "Masked regions",
    "masked_region_features": "Masked regions' features",
    "matching": "Matching",
    "text_only_words": "Words of text alone",
    "loss": "All losses together",
    "learning_rate": "Learning rate",
    "gradient_norm": "Norm of the gradient",
    "masked_word_accuracy": "Masked words",
    "masked_region_accuracy": "Masked regions",
    "text_only_word_accuracy": "Words of text alone",
    "matching_accuracy": "Matching",
    "image_to_text": "Image to text",
    "text_to_image": "Text to image",
    # A detector's.
    "objectness": "Objectness of proposals",
    "proposal_boxes": "Boxes of proposals",
    "classes": "Classes of regions",
    "region_boxes": "Boxes of regions",
    "attributes": "Attributes of regions",
    "object_accuracy": "Objects",
    "attribute_accuracy": "Attributes",
    "proposal_recall": "Objects among the proposals",
    "object_recall": "Objects among the kept regions",
    "average_precision": "mAP@0.5",
    "coco_precision": "COCO AP",
}
# Measures of tasks: shares, and correlations, which are written in percent too.
_OF_TASKS = (
    "overall", "accuracy", "balanced_accuracy", "consistency", "Q->A", "QA->R", "Q->AR", "same_object", "upper_bound",
    "within_0.5", "F1", "accuracy_and_F1", "Matthews", "Pearson", "Spearman", "Pearson_and_Spearman",
)  # fmt: skip
_OF_TASKS_BEGIN = (
    "answer_type_", "question_type_", "label_", "R@", "upper_bound_", "merged_R@", "merged_upper_bound", "image_R@",
    "sentence_R@",
)  # fmt: skip
_IN_NATS = ("masked_words", "masked_regions", "matching", "text_only_words", "objectness", "classes", "attributes")
_SHARES = ("accuracy", "recall")
_RECALLS = {"r1": "R@1", "r5": "R@5", "r10": "R@10"}
_NO_LOSSES = {"learning_rate": "learning rate", "gradient_norm": "norm", "loss": "loss"}  # and their units


@dataclass(frozen=True)
class MeasureName:
    """
    Attributes:
        title: for people, with what is measured: "Masked words: right".
        unit: of an axis: "loss (nats)", "right (%)", "found (%)".
        is_share: 0..1, displayed in percent; more is better.
        is_rank: from 1; less is better.
    """

    title: str
    unit: str
    is_share: bool = False
    is_rank: bool = False

    @property
    def lower_title(self) -> str:
        """The title inside a sentence: "masked words: right", but "Q->AR"."""
        title = self.title
        return title[:1].lower() + title[1:] if title[1:2].islower() else title

    def formatted(self, value: float | None) -> str:
        """Formats a value: shares in percent with a decimal, ranks as whole numbers, others with three decimals; "-"
        for None."""
        if value is None:
            return "-"
        if self.is_share:
            return f"{100 * value:.1f} %"
        return f"{value:,.0f}" if self.is_rank else f"{value:.3f}"


def measure_name(name: str) -> MeasureName:
    """Name of a number of log.jsonl, evaluation.jsonl or results.json; an unknown one keeps its own."""
    stem, _, last = name.rpartition("_")
    of_task = name.replace(" ", "_")
    if of_task in _OF_TASKS or of_task.startswith(_OF_TASKS_BEGIN):
        title = name.replace("_", " ")
        return MeasureName(title[:1].upper() + title[1:], "score (%)", is_share=True)
    if last in _RECALLS:
        return MeasureName(f"{_title(stem)}: {_RECALLS[last]}", "found (%)", is_share=True)
    if name.endswith("_median_rank"):
        return MeasureName(f"{_title(name.removesuffix('_median_rank'))}: median rank", "rank", is_rank=True)
    if last in _SHARES:
        what = "right" if last == "accuracy" else "found"
        return MeasureName(f"{_title(name) if name in _TITLES else _title(stem)}: {what}", f"{what} (%)", is_share=True)
    if last == "precision":
        return MeasureName(_title(name), "average precision (%)", is_share=True)
    if name in _NO_LOSSES:
        return MeasureName(_title(name), _NO_LOSSES[name])
    if name not in _TITLES:
        return MeasureName(_title(name), "")
    return MeasureName(f"{_title(name)}: loss", "loss (nats)" if name in _IN_NATS else "loss")


def less_is_better(name: str) -> bool:
    """Whether smaller is better: true for losses and ranks, false for shares and correlations."""
    called = measure_name(name)
    is_loss = name in _TITLES and not called.is_share
    return is_loss or called.is_rank or name.rpartition("_")[2] in ("loss", "rank")


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " ").capitalize())
