"""What published runs on VQA leave open, whichever system's."""

from __future__ import annotations

LABELS_OPEN = (
    "The release has a label file of its own; here the majority answers, in the order of their questions: "
    "--set vqa.answers=FILE takes a file."
)
MINIVAL_OPEN = (
    "The release keeps the last 3,000 validation questions for itself, whose images it trains on; here nothing is left "
    "to be judged on (--set vqa.train=train+val-minival data.shared_images=true is the release's way)."
)
