"""Options of an extraction, beside those of the detector."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.extraction.network.config import GLOBAL_NETWORKS
from roibeam.extraction.photos.decode import DEFAULT_MAX_PIXELS, LARGEST_MAX_PIXELS
from roibeam.features.record.region_record import FEATURE_DTYPES, top_k_of


@dataclass(frozen=True)
class ExtractOptions:
    """Settings of the records made from images.

    Attributes:
        feature_dtype: "float16" (default), "bfloat16" or "float32".
        distribution: class probabilities to keep for each region: "full" (default; all classes and background in
            float16, what VL-BERT's and ViLBERT's losses use), "top-<k>" (the k best and the rest mass) or "none".
        max_pixels: larger images become failures, before they are decoded.
        decode_threads: threads that read and decode ahead of the detector.
        image_feature: one more feature for the whole photo: "none" (default), "region" (the detector's own, of a box
            around the photo) or "<network>=<weights>" (see `roibeam.extraction.global_feature`).
        load_timeout: seconds after which an image that is still being read or decoded becomes a failure.
        detect_timeout: seconds after which a detector call that has not returned stops the run.
    """

    feature_dtype: str = "float16"
    distribution: str = "full"
    max_pixels: int = DEFAULT_MAX_PIXELS
    decode_threads: int = 2
    image_feature: str = "none"
    load_timeout: float = 120.0
    detect_timeout: float = 900.0

    def __post_init__(self) -> None:
        if self.feature_dtype not in FEATURE_DTYPES:
            raise ValueError(f"feature dtype {self.feature_dtype!r}: choose one of {', '.join(FEATURE_DTYPES)}")
        if self.distribution not in ("full", "none") and self.top_k is None:
            raise ValueError(f"distribution {self.distribution!r}: choose full, none or top-<k>, such as top-20")
        if self.max_pixels > LARGEST_MAX_PIXELS:
            raise ValueError(f"max_pixels is {self.max_pixels}; at most {LARGEST_MAX_PIXELS} can be decoded")
        for name in ("max_pixels", "decode_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("load_timeout", "detect_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")
        if self.image_feature not in ("none", "region") and self.global_network is None:
            raise ValueError(
                f"image feature {self.image_feature!r}: choose none, region or <network>=<weights> with a network of "
                f"{', '.join(GLOBAL_NETWORKS)}"
            )

    @property
    def top_k(self) -> int | None:
        """k of "top-<k>", else None."""
        return top_k_of(self.distribution)

    @property
    def global_network(self) -> str | None:
        """The spec for `build_global_feature`, if `image_feature` is one."""
        network, _, weights = self.image_feature.partition("=")
        return self.image_feature if network in GLOBAL_NETWORKS and weights else None
