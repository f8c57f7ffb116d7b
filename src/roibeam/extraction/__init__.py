"""Pixels to regions: the detector with its conventions, weights and selection, and the engine around them.

Imports no other roibeam package than `roibeam.features`; no Beam or pyarrow. Shards and stores of many photos are
in `roibeam.pipelines`. Read detector.py first, then engine/region_iterator.py.
"""

# First, so that a clone without an installation reports it too.
if __name__ != "roibeam.extraction":
    raise ImportError(f"{__name__!r} is a link to roibeam.extraction, or a copy of it: import roibeam.extraction")

from roibeam.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
