"""A detector's folder as the start of a detector of other classes: all of its weights but those that know classes."""

from __future__ import annotations

from dataclasses import replace

from roibeam.extraction.choice.detector_folder import DetectorFolder
from roibeam.extraction.detector import Detector
from roibeam.extraction.network.rpn import ProposalGenerator
from roibeam.extraction.weights.families import COUNTER
from roibeam.extraction.weights.head_layout import PREDICTOR
from roibeam.extraction.weights.loading import load_weights

_OF_CLASSES = ("cls_score", "bbox_pred", "cls_embedding")
_OF_ATTRIBUTES = ("attr_score",)


def load_folder(
    folder: DetectorFolder, detector: Detector, *, same_classes: bool, same_attributes: bool
) -> tuple[str, ...]:
    """Loads what a detector's folder has for a detector of the same sizes, which may have other classes.

    Args:
        detector: its weights stay where the folder has none for it.
        same_classes, same_attributes: whether the ids of both mean the same.
    Returns:
        The layers whose weights stayed, by their own names.
    Raises:
        ValueError: when the sizes are others.
    """
    config = replace(
        detector.config, num_classes=folder.config.num_classes, num_attributes=folder.config.num_attributes
    )
    source = Detector(config, detector.conventions)
    load_weights(folder.weights, source)
    left = (() if same_classes else _OF_CLASSES) + (() if same_attributes else _OF_ATTRIBUTES)
    without = tuple(f"{PREDICTOR}{layer}." for layer in left)
    own, found = detector.state_dict(), source.state_dict()
    taken = {name: value for name, value in found.items() if name in own and not name.startswith(without)}
    detector.load_state_dict({**own, **taken})
    theirs, ours = source.proposal_generator, detector.proposal_generator
    if isinstance(theirs, ProposalGenerator) and isinstance(ours, ProposalGenerator):
        ours.cell_anchors.copy_(theirs.cell_anchors)
    stayed = [name for name in own if name not in taken and not name.endswith(COUNTER)]
    return tuple(dict.fromkeys(name.removeprefix(PREDICTOR).rpartition(".")[0] for name in stayed))
