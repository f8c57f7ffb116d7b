"""Selection policy: rules for keeping regions of an image, as data, with the published ones by name.

../regions.py carries them out. No torch: a wrong name or setting is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class SelectionPolicy:
    """Number, choice and order of kept regions, and the choice between their two boxes.

    The feature kept is always that of the proposal.

    Attributes:
        method: "classwise-max" or "single-nms".
        kept_box: "proposal" (the box the feature was pooled from) or "regressed" (the proposal moved by its best class,
            so that box and feature differ: the ports do this).
        nms_thresholds: IoU above which the lower-scored box is suppressed; "single-nms" tries them in turn.
        nms_comparison: ">" or ">=": relation of an IoU to the threshold.
        legacy_plus_one_areas: whether the NMS counts a box as x2 - x1 + 1 wide, in photo pixels.
        when_too_few: rule of "single-nms" if no threshold leaves `min_regions`: "no-nms", nothing is suppressed
            (the Hugging Face port then repeats the previous image's regions, or stops), or "last-threshold"
            (detectron2).
        min_score: score a region needs, 0..1; "single-nms" has none (0).
        min_regions: number kept even if their score is lower. A photo with fewer proposals gives all of them.
        max_regions: number of the best ones kept if there are more.
        order: "score", best first, or "published": by proposal, unless `min_regions` or `max_regions` had to decide
            (the tool's own order). "single-nms" is by score.

    Raises:
        ValueError: naming the field and the allowed values.
    """

    method: str = "classwise-max"
    kept_box: str = "proposal"
    nms_thresholds: tuple[float, ...] = (0.3,)
    nms_comparison: str = ">"
    legacy_plus_one_areas: bool = True
    when_too_few: str = "no-nms"
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100
    order: str = "published"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"selection {name} {getattr(self, name)!r}; implemented: {', '.join(choices)}")
        if not isinstance(self.nms_thresholds, tuple) or not self.nms_thresholds:
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds!r}; it must be a tuple of IoUs")
        if not all(0 < iou <= 1 for iou in self.nms_thresholds):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; each must be above 0 and at most 1")
        if list(self.nms_thresholds) != sorted(set(self.nms_thresholds)):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; they must ascend")
        if self.method == "classwise-max" and len(self.nms_thresholds) != 1:
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; classwise-max takes exactly one")
        if self.method == "single-nms" and (self.min_score != 0 or self.legacy_plus_one_areas):
            raise ValueError(
                "selection single-nms knows no score and no +1: set min_score=0, legacy_plus_one_areas=False"
            )
        if self.method == "single-nms" and self.order != "score":
            raise ValueError("selection single-nms keeps the best first: set order='score'")
        if self.method == "classwise-max" and self.when_too_few != "no-nms":
            raise ValueError("selection classwise-max has one threshold: leave when_too_few='no-nms'")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"selection min_score {self.min_score}; it must be in 0..1")
        if not 0 <= self.min_regions <= self.max_regions or self.max_regions < 1:
            raise ValueError(
                f"selection keeps {self.min_regions}..{self.max_regions} regions; it must be 0 <= min <= max, max >= 1"
            )


_CHOICES = MappingProxyType(
    {
        "method": ("classwise-max", "single-nms"),
        "kept_box": ("proposal", "regressed"),
        "nms_comparison": (">", ">="),
        "when_too_few": ("no-nms", "last-threshold"),
        "order": ("published", "score"),
    }
)

# peteanderson80/bottom-up-attention tools/generate_tsv.py.
_BUTD = SelectionPolicy()
# huggingface lxmert/modeling_frcnn.py::do_nms with the threshold list and limits of goldens/detector.
_HF = SelectionPolicy(
    method="single-nms",
    kept_box="regressed",
    nms_thresholds=(0.5, 0.6, 0.7, 0.8, 0.9),
    legacy_plus_one_areas=False,
    min_score=0.0,
    min_regions=10,
    max_regions=36,
    order="score",
)
# airsplay/py-bottom-up-attention demo/detectron2_mscoco_proposal_maxnms.py.
_D2 = replace(_HF, nms_thresholds=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), when_too_few="last-threshold")

SELECTIONS = MappingProxyType(
    {
        "butd-10-100": _BUTD,
        "butd-36": replace(_BUTD, min_regions=36, max_regions=36),
        "milvlg-10-100": replace(_BUTD, nms_comparison=">="),
        "milvlg-36": replace(_BUTD, nms_comparison=">=", min_regions=36, max_regions=36),
        "hf-36": _HF,
        "hf-100": replace(_HF, max_regions=100),
        "d2-36": replace(_D2, min_regions=36, max_regions=36),
        "d2-100": replace(_D2, max_regions=100),
        # The five systems' published rules; where they have none, the rule is that of bottom-up attention.
        "vl-bert": replace(_BUTD, min_score=0.5),  # arXiv:1908.08530: score above 0.5, 10 to 100
        "vilbert": replace(_BUTD, max_regions=36),  # arXiv:1908.02265: score above a threshold, 10 to 36
        "visualbert": replace(_BUTD, min_regions=144, max_regions=144, order="score"),  # arXiv:1908.03557: 144
        # uclanlp/visualbert extract_image_features_nlvr.py keeps the best 150 proposals; 144 of them are used.
        "visualbert-nlvr2": replace(
            _BUTD, nms_thresholds=(0.5,), nms_comparison=">=", min_regions=144, max_regions=144, order="score"
        ),
        "imagebert": replace(_BUTD, min_regions=100, max_regions=100, order="score"),  # arXiv:2001.07966: 100
        "interbert": replace(_BUTD, min_regions=90, max_regions=100),  # arXiv:2003.13198: 90 to 100
        # The maskrcnn-benchmark script of vilbert-multi-task and MMF, for an X-152-FPN network, layer fc6.
        "maskrcnn-benchmark-100": replace(
            _BUTD, nms_thresholds=(0.5,), min_score=0.0, min_regions=100, max_regions=100, order="score"
        ),
    }
)
