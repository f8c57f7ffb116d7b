"""Region features for vision-language models: photos in, region shards out, and the training that reads them.

    import roibeam
    with roibeam.open_store("store/") as store:
        record = store["COCO_val2014_000000000042"]

The names here are what most users need; more are in `roibeam.features`, `roibeam.extraction` and `roibeam.model`. Each
is imported when it is first used. `roibeam.pipelines` is where they meet; the command line is `roibeam --help`.
"""

from roibeam.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
