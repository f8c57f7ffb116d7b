"""The run that a checkpoint is of, and which images it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.training.model_files.trained_with import trained_with
from roibeam.pipelines.training.run_folder.trained_images import trained_among


def run_of(found: ModelCheckpoint) -> Path:
    """The folder of the run: RUN/checkpoints/step-00000100/model is where it was found."""
    return found.source.parents[2]


def trained_images_among(found: ModelCheckpoint, image_ids: Sequence[str]) -> list[str] | None:
    """Those of the ids that the checkpoint's run was trained on; None where nobody tells."""
    return None if trained_with(found).step is None else trained_among(run_of(found), image_ids)
