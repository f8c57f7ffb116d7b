"""Compatibility of settings, model, tokenizer and store, checked before anything is trained or evaluated.

Beside it is what requests need without the import of what uses it: how many images of a caption file must be there, how
many of the records that are read `--checksums` compares, and the options on held-out images.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from roibeam.pipelines.common.console.request_options import INPUT, option

if TYPE_CHECKING:
    from roibeam.features.record.region_record import RegionRecord
    from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

# Share, 0..1. A wrong folder gives next to nothing. A third of Conceptual Captions' links were dead years ago, and
# more die.
MIN_MATCH = 0.25


ALL, SAMPLE = "all", "sample"
SAMPLE_ONE_IN = 16


def checked_one_in(checksums: str) -> int:
    """Number of records of which one is compared with its checksums. Raises ValueError for another word than `ALL` or
    `SAMPLE`."""
    if checksums not in (ALL, SAMPLE):
        raise ValueError(f"--checksums {checksums!r}: expected {ALL} or {SAMPLE} (one record in {SAMPLE_ONE_IN})")
    return 1 if checksums == ALL else SAMPLE_ONE_IN


NumbersOf = Annotated[str | None, option(
    "Data set that plain numeric ids belong to: coco, flickr30k or visual-genome.", "NAME", INPUT,
    default="by the kind of source", advanced=True,
)]  # fmt: skip
HeldOutRules = Annotated[Sequence[str], option(
    "Images that the data must not contain, as RULE=FILE; may be given several times. RULE is refcoco, refcoco+, "
    "refcocog, karpathy, flickr30k, coco, vqa, vqa-minival, vcr, nlvr2, labels, visual-genome or list; FILE may be a "
    "folder of official files. docs/extract.md explains each rule.", "RULE=FILE", INPUT,
)]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions:
    """Images that must not be inside, see `roibeam.pipelines.data.held_out.HeldOut`."""

    held_out: HeldOutRules = ()
    drop_held_out: Annotated[bool, option(
        "Drop the images that --held-out names, instead of stopping.", "", INPUT, advanced=True,
    )] = False  # fmt: skip
    numbers_of: NumbersOf = None


class ReadsRegions(Protocol):
    """Fields of a model's configuration that are checked here."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def region_feature_size(self) -> int: ...


def check_probabilities(sampling: object, *names: str) -> None:
    """Raises ValueError, naming the field, when one of them is not in 0..1."""
    for name in names:
        if not 0 <= getattr(sampling, name) <= 1:
            raise ValueError(f"{type(sampling).__name__}: {name} must be in 0..1, got {getattr(sampling, name)}")


def check_choices(settings: object, **allowed: Collection[str]) -> None:
    """Raises ValueError for a field, by its name, that has none of the allowed values."""
    for name, values in allowed.items():
        if (got := getattr(settings, name)) not in values:
            raise ValueError(f"{type(settings).__name__}: {name} must be one of {', '.join(values)}, got {got!r}")


def check_least(settings: object, **least: float) -> None:
    """Raises ValueError for a field, by its name, that is less than its least value, or NaN."""
    for name, value in least.items():
        if not (got := getattr(settings, name)) >= value:
            what = f"be at least {value}" if value else "not be negative"
            raise ValueError(f"{type(settings).__name__}: {name} must {what}, got {got}")


def check_width(config: ReadsRegions, record: RegionRecord, *, box_numbers: bool = False, setting: str = "") -> None:
    """
    Args:
        box_numbers: whether six numbers of each box are put behind the features.
        setting: that decides on these; "" where features are read as they are.
    Raises:
        ValueError: when the record's features, with these, are not as wide as the model's.
    """
    from roibeam.features.record.region_record import BOX_NUMBERS  # with numpy, which settings do without

    width, expected = record.features.shape[1], config.region_feature_size
    given = width + BOX_NUMBERS * box_numbers
    if given == expected:
        return
    with_numbers = f", with six numbers of each box {given}" if box_numbers else ""
    found = f"record {record.image_id!r}: features have width {width}{with_numbers}, the model was made for {expected}"
    if expected == width + BOX_NUMBERS:
        remedy = f"set {setting}=true" if setting else "give a store whose features end in them"
        raise ValueError(f"{found}, with six numbers of each box behind them; {remedy}")
    if expected == given - BOX_NUMBERS:
        if box_numbers:
            raise ValueError(f"{found}, without them; set {setting}=false")
        raise ValueError(
            f"{found}, without six numbers of each box behind them; give a store whose features do not end in such"
        )
    raise ValueError(
        f"{found}; was the store extracted with another detector? A run on text alone, before images, needs --set "
        f"model.region_feature_size={given}"
    )


def check_vocabulary(config: ReadsRegions, tokenizer: CaptionTokenizer, cure: str = "set vocab_size") -> None:
    """Raises ValueError when the tokenizer has pieces that the model does not know."""
    if config.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer ({tokenizer.description}) has {tokenizer.vocab_size} pieces, the model was made for "
            f"{config.vocab_size}; {cure}"
        )


def check_positions(positions: int, max_pieces: int) -> None:
    """Raises ValueError when a caption may be cut to more pieces than a text of the model has."""
    if max_pieces > positions:
        raise ValueError(
            f"captions of up to {max_pieces} pieces, the model was made for {positions}; set sampling.max_pieces or "
            f"max_position_embeddings"
        )


def check_region_labels(labels: int, num_classes: int, field: str) -> None:
    """
    Args:
        labels: what the model's head predicts, in the field of that name.
        num_classes: foreground classes of the store's detector.
    Raises:
        ValueError: when they are not these and background.
    """
    if labels != num_classes + 1:
        raise ValueError(
            f"the model has {labels} region labels, this store has {num_classes} classes and background; "
            f"set {field} to {num_classes + 1}"
        )


def check_task(config: Any, task: int | None) -> None:
    """Raises ValueError when a model with task tokens gets no token, or one without them gets one."""
    count = getattr(config, "num_task_tokens", 0)
    if not count and task is not None:
        raise ValueError("this model has no task tokens; leave --task-token out")
    if count and (task is None or not 0 <= task < count):
        but = "" if task is None else f", {task} is none of them"
        raise ValueError(f"this model has a token for each task; name one with --task-token, 0 to {count - 1}{but}")
