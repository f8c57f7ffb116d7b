"""Request of one pre-training run, which is the command `roibeam pretrain`: names, paths and numbers alone.

`run_pretraining` of requested_run.py makes the run. Importing this module is cheap: it opens nothing, and only checks
that a list is a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated

from roibeam.messages import check_lists
from roibeam.pipelines.common.console.request_options import (
    END_TO_END,
    INPUT,
    LABELS,
    MODEL,
    OUTPUT,
    TRAINING,
    CaptionColumn,
    Checksums,
    argument,
    option,
    renamed,
)
from roibeam.pipelines.data.compatibility import ALL, MIN_MATCH, HeldOutOptions
from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SYSTEM
from roibeam.pipelines.training.requests import SYSTEMS, EncoderRequest, TrainingOptions, named_step


@renamed(
    stores="store", weights="store_weight", task_texts="task_text", validation="validation_captions",
    leave_out_held_out="drop_held_out", images_of="numbers_of", stage_to="cache_dir", stage_gb="cache_gb",
)  # fmt: skip
@dataclass(frozen=True)
class RequestedData(HeldOutOptions):
    """Training data. Without a store, the text corpus is the only data."""

    store: Annotated[Sequence[str], option(
        "Folder of a store of region features. With --cache-dir also a URL. May be given several times: the captions "
        "of all stores are mixed. Not needed with --text-corpus.", "STORE", INPUT,
    )] = ()  # fmt: skip
    captions: Annotated[Sequence[str], option(
        "Captions: .json (COCO, Karpathy, SBU, list), .tsv or table. One for each --store, or several for a single "
        "store; own means the captions that the store keeps.", "FILE", INPUT, default="the stores' own",
    )] = ()  # fmt: skip
    _: KW_ONLY
    validation_captions: Annotated[str | None, option(
        "Captions to evaluate on, which are not trained on. A Karpathy file gives its split val.", "FILE",
        INPUT,
    )] = None  # fmt: skip
    validation_store: Annotated[str | None, option(
        "Store of the images of --validation-captions.", "STORE", INPUT, default="the first --store", advanced=True,
    )] = None  # fmt: skip
    store_weight: Annotated[Sequence[float], option(
        "Weight of a store: how often its captions are drawn, relative to the others. One for each --store.",
        "WEIGHT", INPUT, default="every caption is equally likely", advanced=True,
    )] = ()  # fmt: skip
    num_classes: Annotated[int | None, option(
        "Number of object classes of the detector behind the features. For imported stores that do not record it; "
        "without it, region classes are not predicted.", "N", INPUT, min=1, default="from the stores", advanced=True,
    )] = None  # fmt: skip
    task_text: Annotated[Sequence[Path], option(
        "Train on a task's own text instead of captions. For VisualBERT: files of VQA (both), VCR's train.jsonl or "
        "NLVR2's train.json.", "FILE", INPUT, advanced=True,
    )] = ()  # fmt: skip
    text_corpus: Annotated[Sequence[Path], option(
        "Also train on plain text: UTF-8, a sentence or paragraph on each line. For VL-BERT. Without --store, train on "
        "text only.", "FILE", INPUT, advanced=True,
    )] = ()  # fmt: skip
    objects: Annotated[Sequence[str], option(
        "Classes and outlines of the regions: COCO instances .json, or VCR's folder vcr1images. For VisualBERT on VCR. "
        "May be given several times, for stores of several files.", "FILE", INPUT, advanced=True,
    )] = ()  # fmt: skip
    caption_column: CaptionColumn = ""
    min_match: Annotated[float | None, option(
        "Stop if less than this share of the captioned images is found.", "SHARE", INPUT, min=0, max=1,
        default=f"{MIN_MATCH:g}",
    )] = None  # fmt: skip
    cache_dir: Annotated[Path | None, option(
        "Local folder to which shards of a store at a URL are copied.", "DIR", INPUT, advanced=True,
    )] = None  # fmt: skip
    cache_gb: Annotated[float | None, option(
        "Largest size of --cache-dir, in GB (10^9 bytes).", "GB", INPUT, min=0.001, default="no limit", advanced=True,
    )] = None  # fmt: skip
    checksums: Checksums = ALL

    def __post_init__(self) -> None:
        check_lists(self, "store", "captions", "task_text", "text_corpus", "objects", "held_out")


@renamed(size="model")
@dataclass(frozen=True)
class RequestedModel:
    """The model, and what it starts from."""

    recipe: Annotated[str | None, option("Repeat a published run; `roibeam recipes` lists them.", "NAME", MODEL)] = None
    toy: Annotated[bool, option("With --recipe: a small model, in some minutes on 2 cores.", "", MODEL)] = False
    system: Annotated[str | None, option(
        f"Model, with the training rules of its paper: {SYSTEMS}.", "NAME", MODEL, default=DEFAULT_SYSTEM,
    )] = None  # fmt: skip
    model: Annotated[str | None, option(
        "Size of the model: tiny, small, base, or another one of docs/train.md.", "MODEL", MODEL, default="small",
    )] = None  # fmt: skip
    from_bert: Annotated[str | None, option(
        "Start from this BERT: hf:REPO, a folder, or none. Its sizes replace those of --model.", "BERT", MODEL,
        default="the recipe's, else none",
    )] = None  # fmt: skip
    from_run: Annotated[str | None, option(
        "Start from the weights of this run or model. Its configuration and tokenizer are taken over; the optimizer is "
        "new.", "DIR", MODEL, convert=named_step,
    )] = None  # fmt: skip
    background: Annotated[str | None, option(
        "Position of the background class: first, last or none. With --from-run.", "PLACE", MODEL,
        default="that of the run; needed for other models", advanced=True,
    )] = None  # fmt: skip
    tokenizer: Annotated[str | None, option(
        "Tokenizer: BERT's vocab.txt, a tokenizer folder or hf:REPO. Or captions: one that is built from them.", "FILE",
        MODEL, default="that of --from-run or --from-bert, else captions",
    )] = None  # fmt: skip


@renamed(images="photos", labels_images="labels_photos", judge_images="judge_photos")
@dataclass(frozen=True, kw_only=True)
class RequestedEncoder(EncoderRequest):
    """Further options of a run through the region encoder, and labelled photos that its detector learns from."""

    skip_missing_photos: Annotated[bool, option(
        "Leave out photos that cannot be used, instead of stopping.", "", END_TO_END, advanced=True,
    )] = False  # fmt: skip
    labels: Annotated[str | None, option(
        "Photos with labelled objects: COCO's instances .json, or a split .txt of Visual Genome. With --end-to-end: "
        "the detector learns from them, too.", "FILE", LABELS, advanced=True,
    )] = None  # fmt: skip
    labels_photos: Annotated[str | None, option(
        "Folder of the photos of --labels.", "DIR", LABELS, default="the folder of the labels", advanced=True,
    )] = None  # fmt: skip
    labels_vocab: Annotated[str | None, option(
        "Folder with the class names of --labels, for Visual Genome.", "DIR", LABELS,
        default="the folder of the labels", advanced=True,
    )] = None  # fmt: skip
    judge_labels: Annotated[str | None, option(
        "Labelled photos on which the detector is evaluated before and after the training.",
        "FILE", LABELS, advanced=True,
    )] = None  # fmt: skip
    judge_photos: Annotated[str | None, option(
        "Folder of the photos of --judge-labels.", "DIR", LABELS, default="the folder of the labels", advanced=True,
    )] = None  # fmt: skip
    max_judge_images: Annotated[int | None, option(
        "Evaluate on at most N photos.", "N", LABELS, min=1, default="all", advanced=True,
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.judge_photos, int):
            raise TypeError("RequestedEncoder: the number of photos is called max_judge_images now; judge_photos is "
                            "their folder")  # fmt: skip


@renamed(settings="set")
@dataclass(frozen=True, kw_only=True)
class RequestedTraining(TrainingOptions):
    """Training of the run. What is None is that of the recipe, or as `--help` tells it."""

    batch_size: Annotated[int | None, option(
        "Captions that each process computes at once.", "N", TRAINING, min=1,
        default="32; with --recipe the largest divisor of its batch up to 32",
    )] = None  # fmt: skip
    learning_rate: Annotated[float | None, option(
        "Highest learning rate. Not scaled by batch size or number of processes. --set train.schedule=NAME sets how it "
        "falls: linear, cosine, constant, steps or plateau.", "RATE", TRAINING, default="0.0001",
    )] = None  # fmt: skip
    warmup_steps: Annotated[int | None, option(
        "Steps until the learning rate is at its highest.", "N", TRAINING, min=0, default="0",
    )] = None  # fmt: skip
    set: Annotated[Sequence[str], option(
        "Change one setting, as section.field=value; may be given several times. Sections: train, data, sampling, "
        "model; end to end also detector, encoder, photos, end_to_end; with --labels also labelled, detection, "
        "detection_sampling, detection_losses. See docs/train.md.", "FIELD=VALUE", TRAINING,
    )] = ()  # fmt: skip
    inspect_batch: Annotated[int, option(
        "Show N rows of the first batch in OUT/batch.html.", "N", OUTPUT, min=0, default="no page",
    )] = 0  # fmt: skip


@dataclass(frozen=True)
class PretrainRequest:
    """Request of one run, on stored features or end to end through the region encoder that `encoder` describes."""

    out: Annotated[Path, argument("OUT", "Run folder to write.")]
    data: RequestedData = field(default_factory=RequestedData)
    model: RequestedModel = field(default_factory=RequestedModel)
    training: RequestedTraining = field(default_factory=RequestedTraining)
    end_to_end: Annotated[bool, option(
        "Train through the detector's network, on photos instead of stored features.", "", END_TO_END,
    )] = False  # fmt: skip
    encoder: RequestedEncoder = field(default_factory=RequestedEncoder)
