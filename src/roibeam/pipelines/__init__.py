"""Where things meet: sources, Beam, stores, the training loop and its tasks, pages, the command line.

Imports the other three floors; nobody imports it. Read extract/extraction_run.py or pretraining/pretrain_run.py first.
"""

if __name__ != "roibeam.pipelines":
    raise ImportError(f"{__name__!r} is a link to roibeam.pipelines, or a copy of it: import roibeam.pipelines")
