"""Region features for vision-language models: photos in, region shards out, and the training that reads them.

    import roibeam
    with roibeam.open_store("store/") as store:
        record = store["COCO_val2014_000000000042"]

The names here are what most users need; more are in `roibeam.features`, `roibeam.extraction` and `roibeam.model`. Each
is imported when it is first used. `roibeam.pipelines` is where they meet; the command line is `roibeam --help`.
"""

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from roibeam import extraction as extraction
    from roibeam import features as features
    from roibeam import model as model
    from roibeam import pipelines as pipelines
    from roibeam.extraction.engine.region_iterator import extract_regions as extract_regions
    from roibeam.extraction.hugging_face_inputs import RegionProcessor as RegionProcessor
    from roibeam.extraction.photos.image_ref import ImageRef as ImageRef
    from roibeam.extraction.weights.loading import build_detector as build_detector
    from roibeam.features.reading.batch_order import BatchStream as BatchStream
    from roibeam.features.reading.staging import open_store as open_store
    from roibeam.features.reading.torch_datasets import RegionBatchSampler as RegionBatchSampler
    from roibeam.features.reading.torch_datasets import RegionDataset as RegionDataset
    from roibeam.features.reading.torch_datasets import RegionIterable as RegionIterable
    from roibeam.features.record.region_record import RegionRecord as RegionRecord
    from roibeam.features.store import FeatureStore as FeatureStore
    from roibeam.features.verify import verify_store as verify_store
    from roibeam.features.writing.store_writer import StoreWriter as StoreWriter
    from roibeam.features.writing.store_writer import write_store as write_store
    from roibeam.model.inputs import VLBatch as VLBatch
    from roibeam.model.inputs import VLOutput as VLOutput
    from roibeam.pipelines.extract.photos_to_store import extract as extract
    from roibeam.pipelines.finetuning.run.task_model import load_task_model as load_task_model
    from roibeam.pipelines.training.model_files.joint_checkpoint import load_joint as load_joint
    from roibeam.pipelines.training.model_files.model_checkpoint import load_model as load_model
    from roibeam.version import __version__ as __version__

_FILES = {
    "extraction": "roibeam.extraction",
    "features": "roibeam.features",
    "model": "roibeam.model",
    "pipelines": "roibeam.pipelines",
    "__version__": "roibeam.version",
    "extract_regions": "roibeam.extraction.engine.region_iterator",
    "RegionProcessor": "roibeam.extraction.hugging_face_inputs",
    "ImageRef": "roibeam.extraction.photos.image_ref",
    "build_detector": "roibeam.extraction.weights.loading",
    "BatchStream": "roibeam.features.reading.batch_order",
    "open_store": "roibeam.features.reading.staging",
    "RegionBatchSampler": "roibeam.features.reading.torch_datasets",
    "RegionDataset": "roibeam.features.reading.torch_datasets",
    "RegionIterable": "roibeam.features.reading.torch_datasets",
    "RegionRecord": "roibeam.features.record.region_record",
    "FeatureStore": "roibeam.features.store",
    "verify_store": "roibeam.features.verify",
    "StoreWriter": "roibeam.features.writing.store_writer",
    "write_store": "roibeam.features.writing.store_writer",
    "VLBatch": "roibeam.model.inputs",
    "VLOutput": "roibeam.model.inputs",
    "extract": "roibeam.pipelines.extract.photos_to_store",
    "load_task_model": "roibeam.pipelines.finetuning.run.task_model",
    "load_model": "roibeam.pipelines.training.model_files.model_checkpoint",
    "load_joint": "roibeam.pipelines.training.model_files.joint_checkpoint",
}
__all__ = list(_FILES)
__getattr__, __dir__ = lazy_names(__name__, _FILES)
