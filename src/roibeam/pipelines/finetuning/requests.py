"""Requests of fine-tuning and of its predictions, which are the commands: names, paths and numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from roibeam.pipelines.common.console.request_options import (
    END_TO_END,
    INPUT,
    MODEL,
    OUTPUT,
    QUESTION,
    SPEED,
    TRAINING,
    Device,
    Threads,
    argument,
    option,
    renamed,
)
from roibeam.pipelines.data.compatibility import HeldOutOptions
from roibeam.pipelines.training.requests import SYSTEMS, EncoderRequest, TrainingOptions, named_step

FINETUNING = "finetuning"  # kind of a run, in its configuration

AnnotatedStore = Annotated[str | None, option(
    "Store of the task's own boxes, used with the detected regions of --store (VCR).", "STORE", INPUT, advanced=True,
)]  # fmt: skip


@renamed(start="from_", size="model", settings="set", encoder="fields of its own: photos, detector and others")
@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(EncoderRequest, TrainingOptions, HeldOutOptions):
    """Request of one fine-tuning run; see `run_finetuning`."""

    out: Annotated[Path, argument("RUN", "Run folder to write.")]
    task: Annotated[str, option(
        "Task to learn: vqa, vcr, refcoco, retrieval, mrpc or another one, or a file such as own.py.", "TASK", INPUT,
    )]  # fmt: skip
    from_: Annotated[str, option(
        "Model to start from: a pre-training run, a model folder, an official checkpoint, a fine-tuning run to train "
        "further, or none for new weights.", "MODEL", MODEL, convert=named_step,
    )]  # fmt: skip
    data: Annotated[Path, option(
        "Folder with the official files of a data set. Or tables of your own (docs/finetuning.md).", "DIR", INPUT,
    )]  # fmt: skip
    store: Annotated[str | None, option(
        "Folder of a store with the regions of all images of the task; not for GLUE.", "STORE", INPUT,
    )] = None  # fmt: skip
    annotated_store: AnnotatedStore = None
    recipe: Annotated[str | None, option(
        "Repeat a published run of the task; `roibeam recipes` lists them.", "NAME", MODEL,
    )] = None  # fmt: skip
    toy: Annotated[bool, option("With --recipe: a small model, in some minutes on 2 cores.", "", MODEL)] = False
    system: Annotated[str | None, option(
        f"Model, with the training rules of its paper: {SYSTEMS}. With --from none.", "NAME", MODEL,
        default="that of --from or --recipe",
    )] = None  # fmt: skip
    model: Annotated[str | None, option(
        "Size of the model: tiny, small, base, or another one of docs/train.md. With --from none.", "MODEL", MODEL,
        default="small",
    )] = None  # fmt: skip
    from_bert: Annotated[str | None, option(
        "Start from this BERT: hf:REPO, a folder, or none. With --from none.", "BERT", MODEL, default="none",
    )] = None  # fmt: skip
    tokenizer: Annotated[str | None, option(
        "Tokenizer: BERT's vocab.txt, a tokenizer folder or hf:REPO.", "FILE", MODEL,
        default="that of --from, else made from the task's texts",
    )] = None  # fmt: skip
    min_match: Annotated[float, option(
        "Stop if less than this share of the images of a split is found.", "SHARE", INPUT, min=0, max=1,
    )] = 1.0  # fmt: skip
    epochs: Annotated[float | None, option(
        "Passes over the training data, in place of --steps.", "N", TRAINING, default="--steps, or those of the recipe",
    )] = None  # fmt: skip
    batch_size: Annotated[int | None, option(
        "Questions or statements that each process computes at once.", "N", TRAINING, min=1, default="32",
    )] = None  # fmt: skip
    learning_rate: Annotated[float | None, option(
        "Highest learning rate. Not scaled by batch size or number of processes.", "RATE", TRAINING, default="0.00005",
    )] = None  # fmt: skip
    warmup_steps: Annotated[int | None, option(
        "Steps until the learning rate is at its highest.", "N", TRAINING, min=0, default="a tenth of the steps",
    )] = None  # fmt: skip
    seeds: Annotated[int, option(
        "Train N runs with different seeds, and report mean and spread.", "N", TRAINING, min=1,
    )] = 1  # fmt: skip
    set: Annotated[Sequence[str], option(
        "Change one setting, as section.field=value; may be given several times. Sections: train, data, model, layout, "
        "head, steps, one with the name of the task; end to end also detector, encoder, photos, end_to_end. See "
        "docs/finetuning.md.", "FIELD=VALUE", TRAINING,
    )] = ()  # fmt: skip
    end_to_end: Annotated[bool, option(
        "Train through the detector's network, on photos instead of stored features.", "", END_TO_END,
    )] = False  # fmt: skip
    command: str = ""


@renamed(second="run_2")
@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Request of `roibeam predict`; see `run_prediction`."""

    run: Annotated[Path, argument(
        "RUN", "Run folder of `roibeam finetune`; the best seed is used, and its best step by train.best_by.",
        convert=named_step,
    )]  # fmt: skip
    data: Annotated[Path, option(
        "Folder with the official files of a data set. Or tables of your own.", "DIR", INPUT,
    )]  # fmt: skip
    out: Annotated[Path, option(
        "Where to write the result. A file, in the task's format.", "PATH", OUTPUT, "--out", "-o",
    )]  # fmt: skip
    store: Annotated[str | None, option(
        "Folder of a store with the regions of all images of the split; not for GLUE.", "STORE", INPUT,
    )] = None  # fmt: skip
    run_2: Annotated[Path | None, argument(
        "RUN_2", "Run of VCR's other problem, for one file with both.",
    )] = None  # fmt: skip
    task: Annotated[str | None, option(
        "File of a task of your own that the run learned.", "TASK", INPUT, default="that of RUN",
    )] = None  # fmt: skip
    annotated_store: AnnotatedStore = None
    photos: Annotated[str | None, option(
        "Folder of the photos. For a model trained end to end.", "DIR", INPUT, default="where the store says",
    )] = None  # fmt: skip
    split: Annotated[str, option(
        "Use only this split, such as train, val or test.", "NAME", INPUT, default="val; dev of nlvr2 and GLUE",
    )] = ""  # fmt: skip
    page: Annotated[Path | None, option(
        "Also write a page of the best, worst or surest predictions, with boxes.", "FILE",
    )] = None  # fmt: skip
    scores: Annotated[Path | None, option(
        "Also write the score of every label for every row, for numpy. For tasks that choose a label.", "FILE.npz",
    )] = None  # fmt: skip
    min_match: Annotated[float, option(
        "Stop if less than this share of the images of the split is found; rows of the others are answered without "
        "regions.", "SHARE", INPUT, min=0, max=1,
    )] = 1.0  # fmt: skip
    blind: Annotated[bool, option(
        "Give the model no regions, to see what it knows from the text alone.", "", QUESTION,
    )] = False  # fmt: skip
    permute_images: Annotated[bool, option("Give every question the image of another question.", "", QUESTION)] = False
    seed: Annotated[int, option(
        "Seed of all random choices: the images of --permute-images, and the subset of --max-images.",
        "N", QUESTION, min=0,
    )] = 0  # fmt: skip
    max_images: Annotated[int | None, option(
        "Use at most N images. For retrieval.", "N", INPUT, min=1, default="all", advanced=True,
    )] = None  # fmt: skip
    folds: Annotated[int, option(
        "Search in N equal parts of the images, each by itself. For retrieval; 5 for COCO's 1K.", "N", QUESTION, min=1,
        advanced=True,
    )] = 1  # fmt: skip
    batch_size: Annotated[int, option(
        "Questions, statements or pairs that each process computes at once.", "N", SPEED, min=1,
    )] = 64  # fmt: skip
    device: Device = "auto"
    precision: Annotated[str | None, option(
        "Number type that the network computes in: float32, bf16 or fp16.", "TYPE", SPEED,
        default="that of RUN on CUDA; float32 elsewhere, and for retrieval",
    )] = None  # fmt: skip
    threads: Threads = None
    command: str = ""
