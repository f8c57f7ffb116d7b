"""Pixels to regions: the detector with its conventions, weights and selection, and the engine around them.

Imports no other roibeam package than `roibeam.features`; no Beam or pyarrow. Shards and stores of many photos are
in `roibeam.pipelines`. Read detector.py first, then engine/region_iterator.py.
"""

# First, so that a clone without an installation reports it too.
if __name__ != "roibeam.extraction":
    raise ImportError(f"{__name__!r} is a link to roibeam.extraction, or a copy of it: import roibeam.extraction")

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from roibeam.extraction.detector import Detector as Detector
    from roibeam.extraction.detector import HeadOutputs as HeadOutputs
    from roibeam.extraction.detector import RegionDetector as RegionDetector
    from roibeam.extraction.engine.extract_options import ExtractOptions as ExtractOptions
    from roibeam.extraction.engine.region_iterator import extract_regions as extract_regions
    from roibeam.extraction.fast.modes import MODES as MODES
    from roibeam.extraction.hugging_face_inputs import RegionProcessor as RegionProcessor
    from roibeam.extraction.network.config import CONFIGS as CONFIGS
    from roibeam.extraction.network.config import DetectorConfig as DetectorConfig
    from roibeam.extraction.network.conventions import CONVENTIONS as CONVENTIONS
    from roibeam.extraction.network.conventions import SELECTIONS as SELECTIONS
    from roibeam.extraction.network.conventions import Conventions as Conventions
    from roibeam.extraction.network.conventions import SelectionPolicy as SelectionPolicy
    from roibeam.extraction.network.state import weights_digest as weights_digest
    from roibeam.extraction.photos.image_ref import Failure as Failure
    from roibeam.extraction.photos.image_ref import ImageRef as ImageRef
    from roibeam.extraction.region_encoder import RegionBatch as RegionBatch
    from roibeam.extraction.region_encoder import RegionEncoder as RegionEncoder
    from roibeam.extraction.region_encoder import collate_photos as collate_photos
    from roibeam.extraction.region_encoder import load_encoder_weights as load_encoder_weights
    from roibeam.extraction.region_encoder import prepare_photo as prepare_photo
    from roibeam.extraction.regions import Regions as Regions
    from roibeam.extraction.weights.detector_choice import PRESETS as PRESETS
    from roibeam.extraction.weights.loading import build_detector as build_detector
    from roibeam.extraction.weights.loading import load_weights as load_weights

_FILES = {
    "PRESETS": "roibeam.extraction.weights.detector_choice",
    "Detector": "roibeam.extraction.detector",
    "HeadOutputs": "roibeam.extraction.detector",
    "RegionDetector": "roibeam.extraction.detector",
    "ExtractOptions": "roibeam.extraction.engine.extract_options",
    "extract_regions": "roibeam.extraction.engine.region_iterator",
    "MODES": "roibeam.extraction.fast.modes",
    "RegionProcessor": "roibeam.extraction.hugging_face_inputs",
    "CONFIGS": "roibeam.extraction.network.config",
    "DetectorConfig": "roibeam.extraction.network.config",
    "CONVENTIONS": "roibeam.extraction.network.conventions",
    "Conventions": "roibeam.extraction.network.conventions",
    "weights_digest": "roibeam.extraction.network.state",
    "Failure": "roibeam.extraction.photos.image_ref",
    "ImageRef": "roibeam.extraction.photos.image_ref",
    "RegionBatch": "roibeam.extraction.region_encoder",
    "collate_photos": "roibeam.extraction.region_encoder",
    "prepare_photo": "roibeam.extraction.region_encoder",
    "RegionEncoder": "roibeam.extraction.region_encoder",
    "load_encoder_weights": "roibeam.extraction.region_encoder",
    "Regions": "roibeam.extraction.regions",
    "SELECTIONS": "roibeam.extraction.network.conventions",
    "SelectionPolicy": "roibeam.extraction.network.conventions",
    "build_detector": "roibeam.extraction.weights.loading",
    "load_weights": "roibeam.extraction.weights.loading",
}
__all__ = list(_FILES)
__getattr__, __dir__ = lazy_names(__name__, _FILES)
