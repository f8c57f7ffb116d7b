"""Options of `roibeam pretrain --end-to-end` that are about labelled photos."""

from __future__ import annotations

import typer

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
