"""Region features on disk: the record of one photo, the shard, the store.

Imports no other package of roibeam, and neither torch nor Beam nor pyarrow: a store is readable on a bare machine;
docs/store-format.md has every byte. Read record/region_record.py (what is stored), shard/layout.py (its bytes) and
store.py (reading) first.
"""

# First, so that a clone without an installation gives this error too.
if __name__ != "roibeam.features":
    raise ImportError(f"{__name__!r} is a link to roibeam.features, or a copy of it: import roibeam.features")

from roibeam.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
