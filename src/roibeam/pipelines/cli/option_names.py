"""Every option of the command line: its name, value and meaning, the same in all commands that have it.

Options are made from this table (`option`), so that no command can give a name another meaning. A command adds its own
details and default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

# Groups of options in `--help`, in their order there.
INPUT = "Input"
DETECTOR = "Detector"
MODEL = "Model"
TRAINING = "Training"
END_TO_END = "End to end"
LABELS = "Labelled photos"
QUESTION = "What is asked"
KEPT = "What is kept"
SPEED = "Speed"
NETWORK = "Network"
FAILURES = "Failures"
PERFECT = "Perfect store"
OUTPUT = "Output"
# Groups of commands.
FEATURES = "Features"
STORES = "Stores"
TRAIN = "Training"
LOOKING = "Looking"
SETUP = "Setting up"
DEVELOPERS = "For developers"
COMMAND_GROUPS = (FEATURES, STORES, TRAIN, LOOKING, SETUP, DEVELOPERS)
GROUPS = (
    INPUT, DETECTOR, MODEL, TRAINING, END_TO_END, LABELS, QUESTION, KEPT, SPEED, NETWORK, FAILURES, PERFECT, OUTPUT,
)  # fmt: skip


@dataclass(frozen=True)
class OptionName:
    """
    Attributes:
        meaning: one plain sentence, true in every command.
        group: in `--help`; a command may show it in another one.
        kind: of the value; bool for a flag.
        value: name of the value in `--help`, in capitals; "" for a flag.
        least, most: range of a number, both ends included.
        off: second form of a flag, where not giving it is a third state.
        short: of one letter.
        is_advanced: only in `--help-all`, unless a command sets it.
    """

    meaning: str
    group: str
    kind: type = str
    value: str = ""
    least: float | None = None
    most: float | None = None
    off: str | None = None
    short: str | None = None
    is_advanced: bool = False


def _text(meaning: str, value: str, group: str, *, is_advanced: bool = False) -> OptionName:
    return OptionName(meaning, group, str, value, is_advanced=is_advanced)


def _path(meaning: str, value: str, group: str, *, short: str | None = None, is_advanced: bool = False) -> OptionName:
    return OptionName(meaning, group, Path, value, short=short, is_advanced=is_advanced)


def _count(
    meaning: str, group: str, *, least: int = 1, most: int | None = None, is_advanced: bool = False
) -> OptionName:
    return OptionName(meaning, group, int, "N", least, most, is_advanced=is_advanced)


def _number(
    meaning: str, value: str, group: str, *, least: float | None = None, most: float | None = None,
    is_advanced: bool = False,
) -> OptionName:  # fmt: skip
    return OptionName(meaning, group, float, value, least, most, is_advanced=is_advanced)


def _share(meaning: str, group: str, *, is_advanced: bool = False) -> OptionName:
    return OptionName(meaning, group, float, "SHARE", 0, 1, is_advanced=is_advanced)


def _seconds(meaning: str, group: str, *, least: float | None = None) -> OptionName:
    return OptionName(meaning, group, float, "SECONDS", least, is_advanced=True)


def _flag(meaning: str, group: str, *, off: str | None = None, is_advanced: bool = False) -> OptionName:
    return OptionName(meaning, group, bool, off=off, is_advanced=is_advanced)


_INPUTS = {
    "photos": _text("Folder of the photos.", "DIR", INPUT),
    "data": _path("Folder with the official files of a data set.", "DIR", INPUT),
    "photo": _path("File of one photo.", "FILE", INPUT),
    "store": _text("Folder of a store of region features.", "STORE", INPUT),
    "annotated-store": _text(
        "Of the task's own boxes, beside the regions that --store detected (VCR).", "STORE", INPUT, is_advanced=True
    ),
    "url-column": _text("Column of the URLs, where ROWS is a table.", "NAME", INPUT),
    "caption-column": _text("Column of the captions: its name; in a caption .tsv 1 or 2.", "COLUMN", INPUT),
    "captions": _text("Captions: .json (COCO, Karpathy, SBU, list), .tsv or table.", "FILE", INPUT),
    "base-url": _text("Address that the path of an HTML file follows, to its images.", "URL", INPUT),
    "held-out-images": _text(
        "Folder of images that must not be inside, known by their pixels; may be given again.", "FOLDER", INPUT
    ),
    "images-from": _path("Earlier collection whose images are taken along, not fetched again.", "FOLDER", INPUT),
    "picture-judge": _path("Judge of pictures: a file of `roibeam collect train-images`.", "FILE", MODEL),
    "pair-judge": _path("Judge of pairs: a file of `roibeam collect train-pairs`.", "FILE", MODEL),
    "pairs": _path("Texts beside images, labelled: CSV with image, text, label (1 or 0), page.", "FILE", INPUT),
    "pairs-store": _text("Store of the images of --pairs.", "STORE", INPUT),
    "match-model": _text("Pre-trained model that is asked whether text and image match.", "MODEL", INPUT),
    "max-captions": _count("Use at most N captions, the first of each image before any second.", INPUT),
    "entities": _text("Folder of Flickr30k Entities: Sentences, Annotations, lists of splits.", "FOLDER", INPUT),
    "parses": _path("Dependency parses of the captions: CoNLL, ten columns or four.", "FILE", INPUT),
    "boxes": _text("Describe these boxes instead of finding regions.", "FILE", INPUT),
    "min-match": _share(
        "Stop if fewer than this share of the captioned images is found.", INPUT, is_advanced=True
    ),
    "held-out": _text("Images that must not be inside, as RULE=FILE.", "RULE=FILE", INPUT, is_advanced=True),
    "drop-held-out": _flag("Drop the images that --held-out names, instead of stopping.", INPUT, is_advanced=True),
    "numbers-of": _text(
        "Data set that plain numeric ids belong to: coco, flickr30k or visual-genome.", "NAME", INPUT, is_advanced=True
    ),
    "id-rule": _text(
        "How a path becomes an image id: no-extension or with-extension.", "RULE", INPUT, is_advanced=True
    ),
    "id-prefix": _text(
        "Put before each image id, such as cc3m/, so that two sources can be merged.", "TEXT", INPUT, is_advanced=True
    ),
    "skip-bad-archives": _flag(
        "Leave out archives that are damaged or cut short, instead of stopping.", INPUT, is_advanced=True
    ),
    "split": _text("Use only this split, such as train, val or test.", "NAME", INPUT),
    "split-file": _path("Karpathy file that --split is of.", "FILE", INPUT),
    "ids": _path("Use only these images: a file with one id on each line, or of `store ids --json`.", "FILE", INPUT),
    "without-ids": _path("Leave these images out: a file as for --ids.", "FILE", INPUT),
    "max-images": _count("Use at most N images.", INPUT),
    "shards": _text("Read only these shards, such as 0-9, or 10- for all from 10 on.", "FIRST-LAST", INPUT),
    "num-classes": _count("Number of object classes of the detector behind the features.", INPUT),
    "format": _text("Format of the feature file.", "FORMAT", INPUT),
    "layout": _text("Layout of the file, where its format has several.", "NAME", OUTPUT),
    "match-ids": _text("When two ids mean the same image: exact, or number (the number they end in).", "RULE", INPUT),
    "task": _text("Task to learn: vqa, vcr, refcoco, retrieval, mrpc or another one, or own.py.", "TASK", INPUT),
    "task-text": _path("Train on a task's own text instead of captions.", "FILE", INPUT, is_advanced=True),
    "objects": _text(
        "Classes and outlines of the regions: COCO instances .json, or VCR's folder vcr1images.", "FILE", INPUT
    ),
    "text-corpus": _path("Also train on plain text: UTF-8, a sentence or paragraph on each line.", "FILE", INPUT),
    "feature-dtype": _text("Number type of the features in the file.", "TYPE", INPUT, is_advanced=True),
    "store-weight": _number("How often to draw from this store, relative to the others.", "WEIGHT", INPUT),
    "validation-captions": _text("Captions that evaluations ask about and that are not trained on.", "FILE", INPUT),
    "validation-store": _text("Store of the images of --validation-captions.", "STORE", INPUT),
    "cache-dir": _path("Local folder that shards of a store at a URL are copied to.", "DIR", INPUT, is_advanced=True),
    "cache-gb": _number(
        "Most that --cache-dir may hold, in GB (10^9 bytes).", "GB", INPUT, least=0.001, is_advanced=True
    ),
    "checksums": _text(
        "Records that are compared with their checksums as they are read: all, or sample (one in 16).", "WHICH", INPUT,
        is_advanced=True,
    ),
}  # fmt: skip
_DETECTORS = {
    "preset": _text("Whose published features to make.", "NAME", DETECTOR),
    "weights": _text("Weights of the detector: a file, a URL, hf:REPO or random:SEED.", "FILE", DETECTOR),
    "detector": _text(
        "toy, a folder of `roibeam detector train`, or sizes: vg-r101-c4, vg-r101-c4-600, r2c-r50, small.",
        "NAME", DETECTOR,
    ),
    "conventions": _text(
        "Which published extractor to reproduce exactly: hf, d2, caffe, milvlg, vlbert-e2e or r2c.", "NAME", DETECTOR,
        is_advanced=True,
    ),
    "selection": _text(
        "Which regions are kept: butd-36, vl-bert, hf-36 and others.", "NAME", DETECTOR, is_advanced=True
    ),
    "vocab": _text(
        "Class names: vg, a file, or a folder with objects_vocab.txt and attributes_vocab.txt.", "DIR",
        DETECTOR,
    ),
    "image-feature": _text(
        "Also store a feature of the whole photo: none, region, or NETWORK=FILE of torchvision.", "KIND", DETECTOR,
        is_advanced=True,
    ),
    "resnet": _text("Start from the ResNet of this file only.", "FILE", DETECTOR),
    "nms-iou": _share("Boxes of one class that overlap more than this suppress each other.", DETECTOR),
    "set": _text(
        "Change one setting, as section.field=value; may be given again.", "FIELD=VALUE", DETECTOR, is_advanced=True
    ),
}  # fmt: skip
_MODELS = {
    "system": _text(
        "Which model and whose rules: vlbert, vilbert, vilbert-single-stream, visualbert, imagebert or interbert.",
        "NAME", MODEL,
    ),
    "model": _text("Size of the model: small or base; a wrong name lists the others.", "SIZE", MODEL),
    "recipe": _text("Repeat a published run; `roibeam recipes` lists them.", "NAME", MODEL),
    "toy": _flag("The recipe in a small model: some minutes on 2 cores.", MODEL),
    "from-bert": _text("Start from this BERT: hf:REPO, a folder, or none.", "BERT", MODEL),
    "from": _text("Pre-training run, model folder or official checkpoint to start from.", "MODEL", MODEL),
    "from-run": _text("Start from the weights of this run or model.", "DIR", MODEL),
    "tokenizer": _text(
        "Words of the text: BERT's vocab.txt, a tokenizer folder or hf:REPO.", "FILE", MODEL, is_advanced=True
    ),
    "config": _path(
        "JSON with the settings of an official checkpoint: its authors' own, or FILE.json of convert --to official, "
        "which is read by itself where it lies beside FILE.",
        "FILE",
        MODEL,
        is_advanced=True,
    ),
    "background": _text(
        "Where classes have background: first, last or none.", "PLACE", MODEL, is_advanced=True
    ),
    "task-token": _count("Which task a multi-task ViLBERT shall do.", MODEL, least=0, is_advanced=True),
    "end-to-end": _flag("Train through the detector's network, on photos instead of stored features.", END_TO_END),
    "skip-missing-photos": _flag("Leave out photos that cannot be used, instead of stopping.", END_TO_END),
    "labels": _text(
        "Photos with labelled objects: COCO's instances .json, or a split .txt of Visual Genome.", "FILE", LABELS
    ),
    "val-labels": _text("Other photos with labels; the detector is judged on them as it learns.", "FILE", INPUT),
    "val-photos": _text("Folder of the photos of --val-labels.", "DIR", INPUT),
    "labels-photos": _text("Folder of the photos of --labels.", "DIR", LABELS),
    "labels-vocab": _text("Folder with the class names of --labels, for Visual Genome.", "DIR", LABELS),
    "judge-labels": _text("Labelled photos on which the detector is judged before and after.", "FILE", LABELS),
    "judge-photos": _text("Folder of the photos of --judge-labels.", "DIR", LABELS),
    "max-judge-images": _count("Judge on at most N photos.", LABELS),
}  # fmt: skip
_TRAINING = {
    "steps": _count("Number of optimizer steps.", TRAINING),
    "epochs": _number("Passes over the training data, in place of --steps.", "N", TRAINING),
    "batch-size": _count("How many samples each process computes at once.", TRAINING),
    "learning-rate": _number("Highest learning rate.", "RATE", TRAINING),
    "warmup-steps": _count("Steps until the learning rate is at its highest.", TRAINING, least=0),
    "decay-steps": _text("Steps after which the learning rate falls to a tenth.", "N,N", TRAINING),
    "frozen-stages": _text("Stages of the ResNet that are not trained.", "N,N", TRAINING),
    "resume": _flag(
        "Continue from the newest checkpoint; --no-resume refuses a folder that holds a run.", TRAINING,
        off="no-resume",
    ),
    "resume-from": _text(
        "Continue from this checkpoint, such as step-2000; later ones are removed.", "STEP", TRAINING, is_advanced=True
    ),
    "stage": _text("Options of one training stage; given again, stages run one after the other.", "OPTIONS", TRAINING,
                   is_advanced=True),
    "seed": _count("Number that every random choice follows from.", TRAINING, least=0),
    "seeds": _count("Train N runs with different seeds, and give mean and spread.", TRAINING),
    "inspect-batch": _count("Show N rows of the first batch in OUT/batch.html.", OUTPUT, least=0),
}  # fmt: skip
_QUESTIONS = {
    "hide": _count("Number of a region to hide and to let the model guess; may be given again.", QUESTION, least=0),
    "layer": _count("Layer whose attention is drawn.", QUESTION),
    "head": _count("Head whose attention is drawn.", QUESTION),
    "top": _count("Show the N best guesses.", QUESTION, most=20),
    "no-retrieval": _flag("Do not score every caption with every image.", QUESTION),
    "folds": _count("Search in N equal parts of the images, each by itself.", QUESTION, is_advanced=True),
    "word": _text("Which piece of a word or phrase looks: last, first, mean or head.", "WHICH", QUESTION),
    "rules": _text("By whose rules predictions are counted.", "NAME", QUESTION),
    "check": _flag("Only look whether the predictions are complete and well written.", QUESTION),
    "against": _path("Compare with this second file of predictions, row by row.", "FILE", QUESTION),
    "blind": _flag("Show the model no regions: what it knows from the text alone.", QUESTION),
    "permute-images": _flag("Show every question another question's image.", QUESTION),
    "compare": _path("Compare two results.json instead of evaluating.", "A B", QUESTION),
    "max-error": _share("Differences up to this share of the largest value count as equal.", QUESTION),
    "worst": _count("Show the N images that differ most.", QUESTION, least=0),
    "deep": _flag("Read every record and compare its checksum.", QUESTION),
    "ranks": _count("Number of processes that share the store.", QUESTION),
    "only": _text("Run the cases whose family, name or file fits this pattern.", "PATTERN", QUESTION),
    "watch": _flag("Look again and again until the store is complete.", QUESTION),
    "every": OptionName("Seconds between two looks.", QUESTION, float, "SECONDS", 1),
}  # fmt: skip
_KEPT = {
    "dtype": _text("Number type of the stored features.", "TYPE", KEPT),
    "distribution": _text("Class probabilities of each region that are stored: full, top-K or none.", "KIND", KEPT),
    "max-regions": _count("Use at most N regions of an image, those with the best scores.", KEPT),
    "min-regions": _count("Keep at least N regions of an image, whatever their scores.", KEPT, least=0),
    "nsfw": _flag("Look for porn and racy pictures, and drop them.", KEPT, off="no-nsfw"),
    "wanted-precision": _share("Share of right ones among what passes; it sets the threshold.", KEPT),
    "min-score": _share("Keep only regions of at least this score.", KEPT),
    "shard-size": _count("Number of images in each new shard.", KEPT, is_advanced=True),
    "shard-mb": _count("End a shard near this many MB (10^6 bytes).", KEPT, is_advanced=True),
    "num-images": _count("Number of pictures to draw.", KEPT, least=40),
    "max-pixels": _count(
        "Images of more pixels count as failures; a pixel of WebP, AVIF, JPEG 2000 counts as 2.",
        FAILURES, is_advanced=True,
    ),
    "min-side": _count("Images whose shorter side has fewer pixels count as failures.", FAILURES, least=0),
    "max-bytes": _count("Image files of more bytes count as failures.", FAILURES, is_advanced=True),
}  # fmt: skip
_SPEED = {
    "device": _text("Where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N.", "DEVICE", SPEED),
    "precision": _text("Number type that the network computes in.", "TYPE", SPEED),
    "batched": _flag("Compute photos of one size together: faster, last digits may differ.", SPEED),
    "threads": _count("CPU threads of each process.", SPEED, is_advanced=True),
    "decode-threads": _count("Threads that read and decode photos ahead.", SPEED, is_advanced=True),
    "workers": _count("Processes that work at the same time.", SPEED),
    "runner": _text("What Beam runs on: local, portable, flink, spark, dataflow or another runner.", "NAME", SPEED),
    "scratch": _text("Folder for files on their way from or to a URL.", "DIR", SPEED, is_advanced=True),
}  # fmt: skip
_NETWORK = {
    "connections": _count("Connections that are open at once.", NETWORK),
    "per-host": _count("Connections to one host that are open at once.", NETWORK),
    "attempts": _count("Tries of a URL that fails for a reason that may pass.", NETWORK),
    "connect-timeout": _seconds("Seconds to wait for a connection.", NETWORK),
    "stall-timeout": _seconds("Seconds that a server may be silent.", NETWORK),
    "timeout": _seconds("Seconds that one answer may take in all.", NETWORK),
    "max-wait": _seconds("Longest wait that a server may ask for.", NETWORK, least=0),
    "backoff": _seconds("Seconds before the second try; they double each time.", NETWORK, least=0),
    "max-redirects": _count("Redirects that are followed for one URL.", NETWORK, least=0, is_advanced=True),
    "allow-private": _text(
        "Private network that may be connected to, such as 10.0.0.0/8; may be given again.", "NETWORK", NETWORK,
        is_advanced=True,
    ),
    "user-agent": _text("Name under which servers see us.", "NAME", NETWORK, is_advanced=True),
    "robots-txt": _flag("Ask each host's robots.txt, and leave out what it forbids.", NETWORK, off="no-robots-txt"),
    "port": _count("Port that runners ask for workers at.", NETWORK, most=65535),
    "host": _text("Address to listen at.", "ADDRESS", NETWORK),
    "pool-token-file": _path("File with the token of the worker pools.", "FILE", NETWORK),
}  # fmt: skip
_FAILURES = {
    "max-failures": _share("Exit with an error if more than this share fails.", FAILURES, is_advanced=True),
    "retry-dead-letters": _flag("Try again what failed before.", FAILURES),
    "drop-damaged": _flag("Leave damaged records out, instead of stopping.", FAILURES),
    "load-timeout": _seconds("Seconds after which a photo that is still being read counts as failed.", FAILURES),
    "detect-timeout": _seconds("Seconds after which a detector that does not answer stops the run.", FAILURES),
}  # fmt: skip
_PERFECT = {
    "perfect-store": _text("Also write a store of regions that are seen without a detector.", "STORE", PERFECT),
    "noise": _number(
        "Standard deviation of what is added to the features, whose parts have 1.", "X", PERFECT, least=0, most=100
    ),
    "missed": _share("Share of the objects that no region shows.", PERFECT),
    "doubled": _share("Share of the objects that two regions show.", PERFECT),
    "box-jitter": _number(
        "Standard deviation of the edges of a box, as a share of its sides.", "X", PERFECT, least=0, most=100
    ),
}  # fmt: skip
_OUTPUTS = {
    "web": _text("Also write a web of pages and WARC files with pictures, all labelled.", "FOLDER", OUTPUT),
    "pages": _count("Number of pages of --web.", OUTPUT),
    "page-kb": _count("Median size of a page of --web, in kB (10^3 bytes).", OUTPUT, most=10_000, is_advanced=True),
    "web-port": _count("Port of 127.0.0.1 at which the pictures of --web will be served.", OUTPUT, most=65535),
    "tasks": _text("Also write tasks about the pictures: VQA v2, VCR, RefCOCO+, NLVR2, GLUE.", "FOLDER", OUTPUT),
    "page": _path("Also write a page of the best, worst or surest predictions, with boxes.", "FILE", OUTPUT),
    "scores": _path("Also write the score of every label for every row, for numpy.", "FILE.npz", OUTPUT),
    "out": _path("Where to write the result.", "PATH", OUTPUT, short="-o"),
    "draw": _path("Also draw the regions on the photo, into this .png file.", "FILE", OUTPUT),
    "html": _path("Also write a page that shows the images side by side.", "FILE", OUTPUT),
    "to": _text("Format to write.", "FORMAT", OUTPUT),
    "dry-run": _flag("Show the plan, and write nothing.", OUTPUT),
    "json": _flag("Print the result as JSON lines on standard output.", OUTPUT),
}  # fmt: skip

OPTIONS: Mapping[str, OptionName] = MappingProxyType(
    {
        name: each
        for part in (
            _INPUTS, _DETECTORS, _MODELS, _TRAINING, _QUESTIONS, _KEPT, _SPEED, _NETWORK, _FAILURES, _PERFECT, _OUTPUTS,
        )
        for name, each in part.items()
    }
)  # fmt: skip


def option(
    name: str,
    here: str = "",
    *,
    values: str = "",
    default: str | None = None,
    group: str | None = None,
    is_advanced: bool | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    """Makes the option of that name.

    Args:
        here: details of this command: whole sentences, displayed after the meaning.
        values: that the option takes in this command, displayed behind the meaning and a colon.
        default: effect of leaving the option out, where its default value does not tell it.
        group: of `--help`; None for that of the table.
        is_advanced: only in `--help-all`; None as in the table.
        callback: changes the value.
    Raises:
        KeyError: for a name that is not in the table.
    """
    known = OPTIONS[name]
    meaning = f"{known.meaning.rstrip('.')}: {values}." if values else known.meaning
    off = f"/--{known.off}" if known.off else ""
    declarations = [f"--{name}{off}", *([known.short] if known.short else [])]
    return typer.Option(
        *declarations,
        help=f"{meaning} {here}".strip(),
        metavar=known.value or None,
        min=known.least,
        max=known.most,
        hidden=known.is_advanced if is_advanced is None else is_advanced,
        callback=callback,
        show_default=True if default is None else default,
        rich_help_panel=known.group if group is None else group,
    )


def argument(name: str, what: str, *, callback: Callable[[Any], Any] | None = None) -> Any:
    """Makes a positional argument, called `name`, in capitals, in usage, help and messages alike. See `option`."""
    return typer.Argument(metavar=name, help=what, show_default=False, callback=callback)
