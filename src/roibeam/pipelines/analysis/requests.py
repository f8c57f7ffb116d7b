"""Requests of evaluations, attention analyses and probes, which are the commands: names, paths and numbers alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from roibeam.messages import check_lists
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    INPUT,
    MODEL,
    OUTPUT,
    QUESTION,
    SPEED,
    CaptionColumn,
    Checksums,
    Device,
    Threads,
    argument,
    option,
    renamed,
)
from roibeam.pipelines.data.compatibility import ALL
from roibeam.pipelines.extract.request import DetectorOptions
from roibeam.pipelines.training.requests import named_step

CHECKPOINT_HELP = (
    "Run folder of `roibeam pretrain`, checkpoints/best below it, a model's folder, or an official checkpoint "
    "(docs/models.md)."
)
_CHECKPOINT = argument("CHECKPOINT", CHECKPOINT_HELP, convert=named_step)
Background = Annotated[str | None, option(
    "Position of the background class: first, last or none.", "PLACE", MODEL,
    default="last, as in roibeam's stores and the models trained on them", advanced=True,
)]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The model that is evaluated, and what lies beside it."""

    checkpoint: Annotated[str, _CHECKPOINT]
    tokenizer: Annotated[str | None, option(
        "Tokenizer: BERT's vocab.txt, a tokenizer folder or hf:REPO.", "FILE", MODEL,
        default="that of the checkpoint's run",
    )] = None  # fmt: skip
    config: Annotated[Path | None, option(
        "JSON with the settings of an official checkpoint: its authors' own, or FILE.json of convert --to official, "
        "which is found without this option if it lies beside FILE.", "FILE", MODEL, advanced=True,
    )] = None  # fmt: skip
    task_token: Annotated[int | None, option(
        "Number of the task, for a multi-task ViLBERT.", "N", MODEL, min=0, advanced=True,
    )] = None  # fmt: skip
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluatedImages:
    """Images of a store that a model is evaluated on."""

    photos: Annotated[str | None, option(
        "Folder of the photos. For a model trained end to end.", "DIR", INPUT, default="where the store says",
    )] = None  # fmt: skip
    max_images: Annotated[int | None, option(
        "Use at most N images. Drawn by --seed.", "N", INPUT, min=1, default="all",
    )] = None  # fmt: skip
    max_regions: Annotated[int | None, option(
        "Use at most N regions of an image, those with the best scores.", "N", QUESTION, min=1, default="all",
        advanced=True,
    )] = None  # fmt: skip
    min_match: Annotated[float, option(
        "Stop if less than this share of the images is found in the store.", "SHARE", INPUT, min=0, max=1,
    )] = 1.0  # fmt: skip
    seed: Annotated[int, option(
        "Seed of all random choices: subset, masks, wrong images, halves, intervals.", "N", QUESTION,
        min=0,
    )] = 0  # fmt: skip
    threads: Threads = None


@renamed(images="photos", options="config", how="fields of its own: seed, batch_size, no_retrieval, folds and others")
@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(CheckpointOptions, EvaluatedImages):
    """Request of `roibeam evaluate`: a model, a store and captions; see `evaluate`."""

    checkpoint: Annotated[str, _CHECKPOINT] = ""
    store: Annotated[str, option("Folder of the store to evaluate on.", "STORE", INPUT, default="none")] = ""
    captions: Annotated[str | None, option(
        "Captions: .json (COCO, Karpathy, SBU, list), .tsv or table.", "FILE", INPUT,
        default="those that the store keeps",
    )] = None  # fmt: skip
    split: Annotated[str | None, option(
        "Use only this split of a Karpathy file, such as train, val or test; restval too.", "NAME", INPUT,
        default="test",
    )] = None  # fmt: skip
    caption_column: CaptionColumn = ""
    checksums: Checksums = ALL
    no_retrieval: Annotated[bool, option("Do not score every caption with every image.", "", QUESTION)] = False
    folds: Annotated[int, option(
        "Search in N equal parts of the images, each by itself. 5 for COCO's 1K.", "N", QUESTION, min=1, advanced=True,
    )] = 1  # fmt: skip
    background: Background = None
    batch_size: Annotated[int, option(
        "Captions, or pairs in retrieval, that are computed at once.", "N", SPEED, min=1,
    )] = 64  # fmt: skip
    precision: Annotated[str, option(
        "Number type that the network computes in: float32, bf16 or fp16.", "TYPE", SPEED,
    )] = "float32"  # fmt: skip
    out: Annotated[Path | None, option(
        "Where to write the result. A new folder, for results.json.", "PATH", OUTPUT, "--out", "-o",
        default="RUN/evaluation, then RUN/evaluation-2, ...",
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        if self.config is not None and not isinstance(self.config, str | Path):
            raise TypeError("EvaluateRequest: config is the file of --config; the fields of the former "
                            "EvaluationConfig are now seed, batch_size, max_images, max_regions, no_retrieval, folds, "
                            "task_token, background and device")  # fmt: skip


@renamed(images="photos", options="config", task="task_token")
@dataclass(frozen=True, kw_only=True)
class AttentionRequest(CheckpointOptions, EvaluatedImages):
    """Request of `roibeam attention`: a model, a store and Flickr30k Entities; see `analyse_attention`."""

    store: Annotated[str, option("Folder of the store with the regions.", "STORE", INPUT)]
    entities: Annotated[str, option(
        "Folder of Flickr30k Entities: Sentences, Annotations, lists of splits.", "FOLDER", INPUT,
    )]  # fmt: skip
    split: Annotated[str | None, option(
        "Use only this split, a list of --entities such as train, val or test.", "NAME", INPUT, default="all images",
    )] = None  # fmt: skip
    parses: Annotated[Path | None, option(
        "Dependency parses of the captions: CoNLL, ten columns or four. Or spacy, which parses them here.",
        "FILE", INPUT, default="phrases alone are evaluated",
    )] = None  # fmt: skip
    rules: Annotated[str, option(
        "Rules by which predictions are counted: any, merged or release.", "NAME", QUESTION,
    )] = "any"  # fmt: skip
    word: Annotated[str, option(
        "Word piece of a word or phrase whose attention counts: last, first, mean or head.", "WHICH", QUESTION,
    )] = "last"  # fmt: skip
    max_regions: Annotated[int | None, option(
        "Use at most N regions of an image, those with the best scores.", "N", QUESTION, min=1, default="all",
    )] = None  # fmt: skip
    batch_size: Annotated[int, option("Captions that are computed at once.", "N", SPEED, min=1)] = 16
    out: Annotated[Path | None, option(
        "Where to write the result. A new folder.", "PATH", OUTPUT, "--out", "-o",
        default="RUN/attention, then RUN/attention-2, ...",
    )] = None  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Returns the request as it stands in the results, whose keys are those of their first version."""
        found = {
            "checkpoint": self.checkpoint, "store": self.store, "entities": self.entities, "out": self.out,
            "split": self.split, "parses": self.parses, "rules": self.rules, "word": self.word, "images": self.photos,
            "min_match": self.min_match, "max_regions": self.max_regions or 0, "max_images": self.max_images or 0,
            "seed": self.seed, "batch_size": self.batch_size, "task": self.task_token, "tokenizer": self.tokenizer,
            "options": self.config, "device": self.device, "threads": self.threads,
        }  # fmt: skip
        return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


@renamed(settings="set", options="config", task="task_token")
@dataclass(frozen=True, kw_only=True)
class ProbeRequest(DetectorOptions, CheckpointOptions):
    """Request of `roibeam probe`: a model, an image, a text, and the picture to write; see `write_probe`.

    The options of a detector are refused with `store`.
    """

    image: Annotated[str, argument("IMAGE", "A photo; with --store the id of an image of the store.")]
    text: Annotated[str, argument("TEXT", 'Text, with [MASK] for words to predict: "a dog on a [MASK]".')]
    store: Annotated[str | None, option(
        "Folder of a store, whose regions the model gets.", "STORE", INPUT, default="a detector finds regions",
    )] = None  # fmt: skip
    photo: Annotated[Path | None, option(
        "File of one photo. With --store: for the picture; none draws on a blank page. A model trained end to end "
        "needs a photo.", "FILE", INPUT, default="none",
    )] = None  # fmt: skip
    hide: Annotated[tuple[int, ...] | None, option(
        "Number of a region to mask, for the model to predict; may be given several times.", "N", QUESTION, min=0,
        default="the five best regions",
    )] = None  # fmt: skip
    top: Annotated[int, option("Show the N best predictions, at most 20.", "N", QUESTION, min=1)] = 5
    layer: Annotated[int | None, option(
        "Layer whose attention is drawn.", "N", QUESTION, min=1, default="the last", advanced=True,
    )] = None  # fmt: skip
    head: Annotated[int | None, option(
        "Head whose attention is drawn.", "N", QUESTION, min=1, default="the mean of all", advanced=True,
    )] = None  # fmt: skip
    background: Background = None
    out: Annotated[Path | None, option(
        "Where to write the result. A new .svg or .png picture; all numbers are written beside it, as .json.",
        "PATH", OUTPUT, "--out", "-o", default="RUN/probe.svg, then RUN/probe-2.svg, ...",
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        check_lists(self, "set")
        if not 1 <= self.top <= 20:
            raise ValueError(f"--top {self.top}: a picture has room for 1 to 20 guesses")


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """Request of `roibeam search`: a store, and a sentence, a region or a photo to look for; see `search_store`."""

    store: Annotated[Path, argument("STORE", "Folder of the store whose photos are searched.")]
    text: Annotated[str, argument("TEXT", 'A sentence: "a dog on a beach".')] = ""
    model: Annotated[str | None, option(
        "Run that scores the sentence with each photo: of finetune --task retrieval, or of pretrain with a match head.",
        "MODEL", MODEL, default="the text network of the store's vectors", convert=named_step,
    )] = None  # fmt: skip
    among: Annotated[int | None, option(
        "Score only the N photos whose captions and class names share most words with the sentence.", "N", QUESTION,
        min=1, default="all",
    )] = None  # fmt: skip
    region: Annotated[str | None, option(
        "Find the regions most similar to this one: number N of the image ID, as roibeam store show counts.", "ID:N",
        QUESTION,
    )] = None  # fmt: skip
    photo: Annotated[Path | None, option(
        "File of one photo. Find the photos most similar to it, by the store's detector.", "FILE", INPUT,
    )] = None  # fmt: skip
    top: Annotated[int, option("Show the N best photos or regions.", "N", QUESTION, min=1)] = 10
    index: Annotated[Path | None, option(
        "Index of the vectors, for --region and --photo. Built if it is not there; needs faiss.", "FILE", SPEED,
        default="every vector is compared",
    )] = None  # fmt: skip
    photos: Annotated[str | None, option(
        "Folder of the photos. For the page, and for a model trained end to end.", "DIR", INPUT,
        default="where the store says",
    )] = None  # fmt: skip
    html: Annotated[Path | None, option("Also write a page with the photos found.", "FILE")] = None
    detector: Annotated[str | None, option(
        "With --photo: detector of another library, as in roibeam extract, or folder of one that has moved.",
        "NAME", DETECTOR, default="that of the store", advanced=True,
    )] = None  # fmt: skip
    weights: Annotated[str | None, option(
        "With --photo: weights of the detector.", "FILE", DETECTOR, default="where they were", advanced=True,
    )] = None  # fmt: skip
    backbone: Annotated[str | None, option(
        "Network of the store's vectors, if it has moved: hf:ID#projection and others.", "NAME", DETECTOR,
        default="that of the store", advanced=True,
    )] = None  # fmt: skip
    batch_size: Annotated[int, option("Photos that are scored at once.", "N", SPEED, min=1)] = 64
    device: Device = "auto"
