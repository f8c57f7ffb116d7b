"""Options that several commands share, in groups by what they are about, and what training says of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from roibeam.pipelines.training.loop import TrainResult

JSON_OUTPUT = typer.Option("--json/--no-json", help="JSON on standard output.")
JSON_LINE = typer.Option("--json/--no-json", help="Result as a JSON line.")

# Which checkpoint evaluate and probe ask, and how its text and classes are read.
CHECKPOINT_HELP = "Run folder of `roibeam pretrain`, a model's folder, or an official checkpoint (docs/checkpoints.md)."
TOKENIZER = typer.Option(help="As in pretrain [default: that of the checkpoint's run].")
CONFIG = typer.Option(help="Official JSON configuration beside an official checkpoint.")
BACKGROUND_FIRST = typer.Option(
    "--background-first/--background-last",
    help="Where the model's classes have background: last in our stores, first in those of bottom-up attention, so in "
    "most official checkpoints.",
)
TASK = typer.Option(min=0, help="Task token, for a multi-task ViLBERT with such tokens; needed there.")

# The detector of extract, probe and look.
PRESET = typer.Option(
    help="Whose features: butd-10-100, butd-36, milvlg, lxmert, d2, vl-bert, vilbert, visualbert, imagebert or "
    "interbert. Sets --detector, --conventions and --selection, each of which may be given beside it; "
    "docs/conventions.md tells each. [default: what the store recorded, else butd-10-100]",
    show_default=False,
)
DETECTOR = typer.Option(
    help="Network sizes: vg-r101-c4 (Visual Genome, true size, photos at 800/1333 pixels), vg-r101-c4-600 (the same at "
    "600/1000) or small. Or a detector with weights, names and conventions of its own, without --preset: a folder of "
    "`roibeam detector train`, or toy, which comes with the project and knows the toy world. [default: of the preset]",
    show_default=False,
)
CONVENTIONS = typer.Option(
    help="Whose arithmetic: hf, d2, caffe, milvlg or vlbert-e2e. Weights of every family load into each. [default: of "
    "the preset, or of the detector's folder]",
    show_default=False,
)
SELECTION = typer.Option(
    help="Which regions are kept: butd-36, vl-bert, hf-36, ...; see docs/conventions.md. [default: of the preset; "
    "butd-10-100 with a detector's folder]",
    show_default=False,
)
WEIGHTS = typer.Option(help="Of the detector, as in extract [default: those of the detector's folder].")
VOCAB = typer.Option(help="Class names, as in extract [default: those of the store or detector].")
DETECTOR_SET = typer.Option("--set", help="section.field=value of the detector, as in extract.")

# How captions must fit, and which images must not be inside: extract, pretrain and leaks.
HELD_OUT = typer.Option(
    "--held-out",
    metavar="RULE=FILE",
    help="Images that must not be inside, repeatable: refcoco, refcoco+ or refcocog='refs(unc).p', "
    "karpathy=dataset_coco.json, flickr30k=test.txt, vqa=questions.json, list=ids.txt; visual-genome=image_data.json "
    "finds its copies of COCO's. See docs/captions.md.",
)
LEAVE_OUT = typer.Option(
    "--leave-out-held-out/--refuse-held-out", help="Drop images that --held-out names, instead of stopping."
)
IMAGES_OF = typer.Option(
    "--images-of",
    help="Whose numbers ids such as 2415417 are, where kind and folder do not tell: coco, flickr30k or visual-genome.",
)

# The labelled photos of `roibeam pretrain --end-to-end`.
LABELS = typer.Option(
    help="End to end: photos with labelled objects, as in `roibeam detector train`. The detector that the encoder is "
    "of learns from them in the same steps; its losses are added to the model's, see --set detection.",
    show_default=False,
)
LABELS_IMAGES = typer.Option(help="Folder of the photos of --labels [default: that of the labels].", show_default=False)
JUDGE_LABELS = typer.Option(
    help="End to end: held-out photos with labelled objects, on which the detector's mAP is measured before and after.",
    show_default=False,
)
JUDGE_IMAGES = typer.Option(
    help="Folder of the photos of --judge-labels [default: that of the labels].", show_default=False
)
JUDGE_PHOTOS = typer.Option(min=1, help="Judge the first so many photos only [default: all].", show_default=False)
LABELS_VOCAB = typer.Option(
    help="Folder of objects_vocab.txt and attributes_vocab.txt, for labels of Visual Genome [default: that of the "
    "labels].",
    show_default=False,
)

# All that train.
RESUME = typer.Option(
    "--resume/--no-resume",
    help="Continue from OUT's newest checkpoint, or refuse a folder that holds a run "
    "[default: continue where OUT holds this very run].",
    show_default=False,
)


def run_folder_lines(run_dir: Path, result: TrainResult) -> list[str]:
    """The files of a run folder that every training writes, with a word on each, for the terminal."""
    best = [] if result.best is None else [f"  {result.best.relative_to(run_dir)}/   the best by its evaluations"]
    curves = ["  curves.svg   its curves, as a picture"] if (run_dir / "curves.svg").is_file() else []
    return [
        *best,
        "  report.html   look here first: how good, curves, settings",
        *curves,
        "  log.jsonl   one line per step",
        "  config.json   everything this run was made with",
    ]
