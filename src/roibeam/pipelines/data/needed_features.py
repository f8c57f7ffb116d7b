"""The features that a published run needs, as data: which network, which regions of it, or whose boxes. No torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from roibeam.extraction.choice.detector_choice import named
from roibeam.extraction.choice.detectron2_choice import PUBLISHED_SELECTIONS
from roibeam.extraction.choice.presets import PRESETS
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, CONVENTIONS_OF_SIZES
from roibeam.extraction.network.selection_policy import SELECTIONS
from roibeam.features.record.fingerprint import Fingerprint, feature_space_of
from roibeam.pipelines.data.feature_words import boxes_words
from roibeam.pipelines.data.preset_names import conventions_name

PHOTOS, STORE, WEIGHTS = "PHOTOS", "STORE", "WEIGHTS"  # what a user fills in
# Given boxes: whose they are, and the file that `extract --boxes` reads.
GIVEN_BOXES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "vcr": ("VCR's own boxes", "vcr1images/"),
        "coco": ("COCO's annotated boxes", "instances_train2014.json"),
        "refcoco+": ("the annotated boxes of COCO's photos", "refcoco+/instances.json"),
        "mattnet": ("MAttNet's detected boxes", "res101_coco_minus_refer_notime_dets.json"),
    }
)
_DETECTRON2 = "a network of detectron2's"


@dataclass(frozen=True)
class Features:
    """What `roibeam extract` is to make for a run: a preset, or a detector that no preset is of.

    Attributes:
        preset: name in `PRESETS`; "" beside another detector.
        detector: as `extract --detector` takes it; of a preset where it is left out.
        selection: name in `SELECTIONS`, the rule which regions stay; of the preset, or of detectron2's network, where
            it is left out; "" where the boxes are given.
        boxes: name in `GIVEN_BOXES`; "" for regions that the detector proposes.
        annotated: the same, of a second store by the same network (`finetune --annotated-store`); "" for none.
        image_feature: of the whole photo, as `extract --image-feature` takes it; "" for none.

    Raises:
        ValueError: for an unknown name, or neither preset nor detector.
    """

    preset: str = ""
    detector: str = ""
    selection: str = ""
    boxes: str = ""
    annotated: str = ""
    image_feature: str = ""

    def __post_init__(self) -> None:
        preset = named("preset", self.preset, PRESETS) if self.preset or not self.detector else None
        detector = self.detector or ("" if preset is None else preset.detector)
        named("detector", detector, {**CONFIGS, **PUBLISHED_SELECTIONS})
        for boxes in filter(None, (self.boxes, self.annotated)):
            named("boxes", boxes, GIVEN_BOXES)
        selection = self.selection or (PUBLISHED_SELECTIONS.get(detector, "") if preset is None else preset.selection)
        if not self.boxes:
            named("selection", selection, SELECTIONS)
        object.__setattr__(self, "detector", detector)
        object.__setattr__(self, "selection", "" if self.boxes else selection)

    @property
    def conventions(self) -> str:
        """Name in `CONVENTIONS`; "" of a network of detectron2's."""
        return PRESETS[self.preset].conventions if self.preset else CONVENTIONS_OF_SIZES.get(self.detector, "")

    @property
    def commands(self) -> tuple[str, ...]:
        """`roibeam extract ...` for each store, to be typed with photos, weights and store in place of capitals."""
        second = self.of_annotated
        return (shlex.join(self._words()), *(() if second is None else second.commands))

    @property
    def of_annotated(self) -> Features | None:
        """The second store's; None where there is none."""
        return replace(self, boxes=self.annotated, annotated="") if self.annotated else None

    def words(self) -> str:
        """Such as "preset vl-bert: 10 to 100 regions (vl-bert)"."""
        network = f"preset {self.preset}" if self.preset else f"detector {self.detector}"
        found = [self._boxes_words(), *([GIVEN_BOXES[self.annotated][0]] if self.annotated else [])]
        whole = f"; {self.image_feature.partition('=')[0]} feature of the whole photo" if self.image_feature else ""
        return f"{network}: {', and in a second store '.join(found)}{whole}"

    def note(self, of: str, store: str, fingerprint: Fingerprint, *, boxes_alone: bool = False) -> str | None:
        """One line where a store tells that it was made otherwise; None where it was not, or does not tell.

        Args:
            of: the recipe's name.
            store: its path.
            boxes_alone: the run makes features of its own, and reads the boxes of the store.
        """
        pairs = []
        network = None if boxes_alone else self._other_network(fingerprint)
        if network is not None:
            pairs.append((f"detector {self.detector}", network))
        boxes = boxes_words(fingerprint)
        if boxes is not None and boxes != boxes_words(self._as_recorded()):
            pairs.append((self._boxes_words(), boxes))
        if not pairs:
            return None
        left, right = (", ".join(side) for side in zip(*pairs, strict=True))
        return f"recipe {of} is of {left}, store {store} has {right}; roibeam recipes {of} prints how to extract"

    def _words(self) -> list[str]:
        words = ["roibeam", "extract", PHOTOS, STORE]
        words += ["--preset", self.preset] if self.preset else ["--detector", self.detector]
        if self.preset and self.detector != PRESETS[self.preset].detector:
            words += ["--detector", self.detector]
        usual = PRESETS[self.preset].selection if self.preset else PUBLISHED_SELECTIONS.get(self.detector)
        words += ["--selection", self.selection] if self.selection and self.selection != usual else []
        words += ["--boxes", GIVEN_BOXES[self.boxes][1]] if self.boxes else []
        words += ["--image-feature", self.image_feature] if self.image_feature else []
        return [*words, "--weights", WEIGHTS]

    def _boxes_words(self) -> str:
        return GIVEN_BOXES[self.boxes][0] if self.boxes else str(boxes_words(self._as_recorded()))

    def _as_recorded(self) -> Fingerprint:
        """With the boxes as a store that was made so has them."""
        details: dict[str, Any] = {"regions": "given" if self.boxes else _plain(asdict(SELECTIONS[self.selection]))}
        return Fingerprint(feature_space_of(details), {}, details)

    def _other_network(self, fingerprint: Fingerprint) -> str | None:
        """The store's, in words; None where it is this one, or not known."""
        told = fingerprint.details.get("detector")
        if not isinstance(told, dict) or not isinstance(told.get("config"), dict):
            return None
        config, conventions = told["config"], told.get("conventions")
        if "MODEL" in config or not isinstance(conventions, dict):
            return None if self.detector in PUBLISHED_SELECTIONS else _DETECTRON2
        words = f"conventions {conventions_name(conventions)}, photos at {config['short_edge']}/{config['long_edge']}"
        if self.detector in PUBLISHED_SELECTIONS:
            return words
        if _differing(conventions, asdict(CONVENTIONS[self.conventions])):
            return words
        return ", ".join(_differing(config, asdict(CONFIGS[self.detector]))) or None


def _differing(recorded: Mapping[str, Any], meant: Mapping[str, Any]) -> list[str]:
    """Such as "num_classes 80"; a store of given boxes records less, and one of a ResNet alone has no classes."""
    meant = _plain(meant)
    if recorded.get("num_classes") == 0:
        meant |= {"num_classes": 0, "num_attributes": 0}
    return [f"{name} {value}" for name, value in recorded.items() if meant.get(name) != value]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As a file has them: tuples are lists."""
    found: dict[str, Any] = json.loads(json.dumps(fields))
    return found
