"""Request of one pre-training run: names, paths and numbers alone, as a user gives them.

`run_pretraining` of requested_run.py makes the run. Importing this module is cheap: it opens nothing, and only checks
that a list is a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roibeam.messages import check_lists
from roibeam.pipelines.data.compatibility import ALL


@dataclass(frozen=True)
class RequestedData:
    """Training data. Without a store, the text corpus is the only data.

    Attributes:
        stores: folders or URLs, of one feature space.
        captions: a file for each store, or "own" for those that it keeps; none takes the stores' own.
        weights: share of the training data from each store; none makes every caption equally likely.
        task_texts: in place of captions, the files of a task's own text, see `TaskTexts`.
        text_corpus: files of text without images.
        objects: files with classes and outlines of the stores' regions, see `ImageObjects`.
        num_classes: foreground classes of the stores' detector, if the stores do not record it.
        min_match: share of the images of caption files that the store must have, 0..1; None as in extract.
        validation: held-out captions for evaluations; `validation_store` of their images, None for the first store.
        held_out: rules of images that must not be in the data, as RULE=FILE, see `HeldOut`.
        leave_out_held_out: drop such images instead of stopping.
        images_of: data set of ids that are bare numbers; None if kind and folder identify it.
        caption_column: of caption files that are .tsv, see `CaptionFile`.
        stage_to, stage_gb: local folder that shards of stores are copied to as they are read, and room in it, 10^9
            bytes, None for no limit.
        checksums: how many records are compared with their checksums, see `checked_one_in`.
    """

    stores: Sequence[str] = ()
    captions: Sequence[str] = ()
    weights: Sequence[float] = ()
    task_texts: Sequence[Path] = ()
    text_corpus: Sequence[Path] = ()
    objects: Sequence[str] = ()
    num_classes: int | None = None
    min_match: float | None = None
    validation: str | None = None
    validation_store: str | None = None
    held_out: Sequence[str] = ()
    leave_out_held_out: bool = False
    images_of: str | None = None
    caption_column: str = ""
    stage_to: Path | None = None
    stage_gb: float | None = None
    checksums: str = ALL

    def __post_init__(self) -> None:
        check_lists(self, "stores", "captions", "task_texts", "text_corpus", "objects", "held_out")


@dataclass(frozen=True)
class RequestedModel:
    """The model, and what it starts from.

    Attributes:
        recipe: a published run, see `RECIPES`; sets system, size, sampling and training.
        toy: the recipe's choices in a small model.
        system, size: without a recipe; None as of `chosen_system`, and small.
        from_bert: hf:<repo>, or a folder; "none" for new weights; None for the recipe's, else new weights.
        from_run: run, or model of the same system, to continue as a second stage does.
        background: position of background in the classes of such a model, see `continued_model`.
        tokenizer: see `load_tokenizer`; None for that of `from_run` or `from_bert`, else one made from the captions.
    """

    recipe: str | None = None
    toy: bool = False
    system: str | None = None
    size: str | None = None
    from_bert: str | None = None
    from_run: str | None = None
    background: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class RequestedEncoder:
    """Further options of a run through the region encoder. Names and order are those of the command line.

    Attributes:
        images: folder of the photos; None for the locations that the store recorded.
        detector, weights, conventions: of the encoder, see `choose_encoder`; None for the defaults.
        skip_missing_photos: leave out, and count, samples whose photo cannot be used.
        labels, labels_images, labels_vocab: photos with labelled objects that the detector learns from, their folder,
            and that of their vocabulary.
        judge_labels, judge_images, judge_photos: held-out ones, their folder, and their number; None for all.
    """

    images: str | None = None
    detector: str | None = None
    weights: str | None = None
    conventions: str | None = None
    skip_missing_photos: bool = False
    labels: str | None = None
    labels_images: str | None = None
    labels_vocab: str | None = None
    judge_labels: str | None = None
    judge_images: str | None = None
    judge_photos: int | None = None


@dataclass(frozen=True)
class RequestedTraining:
    """Training options of the run.

    Attributes:
        steps, batch_size, learning_rate, warmup_steps: None for those of the recipe, else 1000, 32 captions for
            each micro-batch and process, 0.0001 and 0. A resumed run without steps keeps its own.
        device: as of `TrainConfig`.
        threads: of the CPU; None for torch's choice.
        seed: of weights, order, masks and dropout.
        settings: changes, as section.field=value.
        inspect_batch: number of rows of the first batch in batch.html.
        resume: None continues if the folder holds this very run, True continues from its newest checkpoint, False
            refuses a folder that holds a run, the name of a checkpoint continues from it.
    """

    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    device: str = "auto"
    threads: int | None = None
    seed: int = 0
    settings: Sequence[str] = ()
    inspect_batch: int = 0
    resume: bool | str | None = None

    def __post_init__(self) -> None:
        check_lists(self, "settings")


@dataclass(frozen=True)
class PretrainRequest:
    """Request of one run.

    Attributes:
        end_to_end: train through the region encoder that `encoder` describes; else on stored features.
        end_to_end: train through the region encoder, by `encoder`; else on stored features.
    """

    out: Path
    data: RequestedData = field(default_factory=RequestedData)
    model: RequestedModel = field(default_factory=RequestedModel)
    training: RequestedTraining = field(default_factory=RequestedTraining)
    end_to_end: bool = False
    encoder: RequestedEncoder = field(default_factory=RequestedEncoder)
