"""Pixels to regions: the detector with its conventions, weights and selection, decoding, and the engine around them.

    from extraction import build_detector
    detector = build_detector("vg-r101-c4", weights="/models/vg.safetensors", selection="butd-36")
    (regions,) = detector([cv2.imread("photo.jpg")])

Imports `features` of ours and nothing else; runs without beam or pyarrow. Read detector.py first.
"""

from extraction.config import CONFIGS, DetectorConfig
from extraction.conventions import CONVENTIONS, Conventions
from extraction.detector import Detector, HeadOutputs, RegionDetector
from extraction.engine import extract
from extraction.extract_options import ExtractOptions
from extraction.images import Failure, ImageRef
from extraction.modes import MODES
from extraction.region_batch import RegionBatch, collate_photos, prepare_photo
from extraction.region_encoder import RegionEncoder, load_encoder_weights
from extraction.regions import Regions
from extraction.selection import SELECTIONS, SelectionPolicy
from extraction.state import weights_digest
from extraction.weights import build_detector, load_weights

__all__ = [
    "CONFIGS",
    "CONVENTIONS",
    "MODES",
    "SELECTIONS",
    "Conventions",
    "Detector",
    "DetectorConfig",
    "ExtractOptions",
    "Failure",
    "HeadOutputs",
    "ImageRef",
    "RegionBatch",
    "RegionDetector",
    "RegionEncoder",
    "Regions",
    "SelectionPolicy",
    "build_detector",
    "collate_photos",
    "extract",
    "load_encoder_weights",
    "load_weights",
    "prepare_photo",
    "weights_digest",
]
