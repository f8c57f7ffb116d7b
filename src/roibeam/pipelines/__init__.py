"""Meeting place of the other floors: sources, Beam, stores, the training loop and its tasks, pages, the command line.

Imports the other three floors, which do not import it. Read extract/beam_extraction.py or
pretraining/pretrain_run.py first.
"""

# First, so that it is what a clone without an installation says too.
if __name__ != "roibeam.pipelines":
    raise ImportError(f"{__name__!r} is a link to roibeam.pipelines, or a copy of it: import roibeam.pipelines")

from roibeam.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
