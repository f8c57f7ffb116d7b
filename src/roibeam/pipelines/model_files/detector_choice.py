"""Which detector a command line names: a preset of sizes with weights beside it, or a folder that holds everything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.detector_folder import SHIPPED, read_detector_folder
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.pipelines.foundation.overrides import preset
from roibeam.pipelines.sources.vocabulary import Vocabulary


@dataclass(frozen=True)
class ChosenDetector:
    """A detector before `--set` changes it.

    Attributes:
        config, conventions: the network and how it computes.
        weights: see `load_weights`.
        vocabulary: the names that its folder holds; bare ids of a preset.
        is_folder: whether it came with weights and names of its own.
    """

    config: DetectorConfig
    conventions: Conventions
    weights: str
    vocabulary: Vocabulary
    is_folder: bool


def choose_detector(detector: str, *, weights: str | None = None, conventions: str | None = None) -> ChosenDetector:
    """What `--detector`, `--weights` and `--conventions` say together.

    Args:
        detector: the name of a shipped detector, a detector's folder, or the name of a preset.
        weights: None means those of the folder; a preset needs some.
        conventions: a preset's name; None means those of the folder, "hf" with a preset.
    Raises:
        ValueError: for a name that is none of these, a folder that is no detector's, or a preset without weights.
    """
    chosen = None if conventions is None else preset("conventions", conventions, CONVENTIONS)
    if detector in SHIPPED or (detector not in CONFIGS and Path(detector).exists()):
        folder = read_detector_folder(detector)
        names = Vocabulary(folder.class_names, folder.attribute_names or None)
        return ChosenDetector(
            folder.config, chosen or folder.conventions, weights or folder.weights, names, is_folder=True
        )
    if detector not in CONFIGS:
        known = ", ".join(dict.fromkeys([*SHIPPED, *CONFIGS]))
        raise ValueError(f"--detector {detector!r}: neither a detector's folder nor one of {known}")
    if weights is None:
        raise ValueError(
            f"--weights is missing: {detector} names sizes only; --detector {next(iter(SHIPPED))} brings weights"
        )
    return ChosenDetector(CONFIGS[detector], chosen or CONVENTIONS["hf"], weights, Vocabulary(), is_folder=False)
