"""Tensors in, tensors out: five vision-language models, their heads, losses and masking.

Imports no other roibeam package, reads no files of runs; the region encoder is known as a protocol. Shared parts are in
common/, each model has a folder. Read inputs.py first, then one model beside its paper.
"""

# First, so that a clone without an installation reports it too.
if __name__ != "roibeam.model":
    raise ImportError(f"{__name__!r} is a link to roibeam.model, or a copy of it: import roibeam.model")

from roibeam.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
