"""Region features on disk: the record of one photo, the shard, the store.

Imports no other package of roibeam, and neither torch nor Beam nor pyarrow: a store is readable on a bare machine;
docs/store-format.md has every byte. Read record/region_record.py (what is stored), shard/layout.py (its bytes) and
store.py (reading) first.
"""

# First, so that a clone without an installation gives this error too.
if __name__ != "roibeam.features":
    raise ImportError(f"{__name__!r} is a link to roibeam.features, or a copy of it: import roibeam.features")

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from roibeam.features.batch import BatchBuffers as BatchBuffers
    from roibeam.features.batch import RegionBatch as RegionBatch
    from roibeam.features.batch import RegionFilter as RegionFilter
    from roibeam.features.comparison_result import StoreComparison as StoreComparison
    from roibeam.features.exchange.butd_tsv import ButdTsv as ButdTsv
    from roibeam.features.exchange.butd_tsv import read_butd_tsv as read_butd_tsv
    from roibeam.features.reading.batch_order import BatchStream as BatchStream
    from roibeam.features.reading.staging import StagedStore as StagedStore
    from roibeam.features.reading.staging import open_store as open_store
    from roibeam.features.reading.staging import plan_ranks as plan_ranks
    from roibeam.features.record.fingerprint import Fingerprint as Fingerprint
    from roibeam.features.record.fingerprint import feature_space_of as feature_space_of
    from roibeam.features.record.region_drawing import draw_regions as draw_regions
    from roibeam.features.record.region_drawing import region_labels as region_labels
    from roibeam.features.record.region_record import RegionRecord as RegionRecord
    from roibeam.features.record.region_record import TopKDistribution as TopKDistribution
    from roibeam.features.record.region_record import content_digest as content_digest
    from roibeam.features.record.region_record import merge_digests as merge_digests
    from roibeam.features.record.region_record import record_digest as record_digest
    from roibeam.features.record_pairing import RecordSource as RecordSource
    from roibeam.features.shard.layout import RegionMeta as RegionMeta
    from roibeam.features.shard.manifest import DeadLetter as DeadLetter
    from roibeam.features.shard.manifest import ShardEntry as ShardEntry
    from roibeam.features.shard.manifest import ShardManifest as ShardManifest
    from roibeam.features.shard.manifest import ShardSummary as ShardSummary
    from roibeam.features.shard.manifest import StoreManifest as StoreManifest
    from roibeam.features.shard.reader import ShardReader as ShardReader
    from roibeam.features.shard.writer import ShardWriter as ShardWriter
    from roibeam.features.shard.writer import publish_shard as publish_shard
    from roibeam.features.shard.writer import publish_store as publish_store
    from roibeam.features.store import FeatureStore as FeatureStore
    from roibeam.features.store_comparison import compare as compare
    from roibeam.features.verify import Problem as Problem
    from roibeam.features.verify import verify_store as verify_store
    from roibeam.features.writing.store_writer import StoreWriter as StoreWriter
    from roibeam.features.writing.store_writer import write_store as write_store

# None of them needs torch: the data sets for torch are names of `roibeam`.
_FILES = {
    "BatchBuffers": "roibeam.features.batch",
    "RegionBatch": "roibeam.features.batch",
    "RecordSource": "roibeam.features.record_pairing",
    "StoreComparison": "roibeam.features.comparison_result",
    "compare": "roibeam.features.store_comparison",
    "ButdTsv": "roibeam.features.exchange.butd_tsv",
    "read_butd_tsv": "roibeam.features.exchange.butd_tsv",
    "BatchStream": "roibeam.features.reading.batch_order",
    "open_store": "roibeam.features.reading.staging",
    "plan_ranks": "roibeam.features.reading.staging",
    "StagedStore": "roibeam.features.reading.staging",
    "content_digest": "roibeam.features.record.region_record",
    "merge_digests": "roibeam.features.record.region_record",
    "record_digest": "roibeam.features.record.region_record",
    "draw_regions": "roibeam.features.record.region_drawing",
    "region_labels": "roibeam.features.record.region_drawing",
    "Fingerprint": "roibeam.features.record.fingerprint",
    "feature_space_of": "roibeam.features.record.fingerprint",
    "RegionRecord": "roibeam.features.record.region_record",
    "TopKDistribution": "roibeam.features.record.region_record",
    "RegionFilter": "roibeam.features.batch",
    "RegionMeta": "roibeam.features.shard.layout",
    "DeadLetter": "roibeam.features.shard.manifest",
    "ShardEntry": "roibeam.features.shard.manifest",
    "ShardManifest": "roibeam.features.shard.manifest",
    "ShardSummary": "roibeam.features.shard.manifest",
    "StoreManifest": "roibeam.features.shard.manifest",
    "publish_shard": "roibeam.features.shard.writer",
    "publish_store": "roibeam.features.shard.writer",
    "ShardReader": "roibeam.features.shard.reader",
    "ShardWriter": "roibeam.features.shard.writer",
    "FeatureStore": "roibeam.features.store",
    "Problem": "roibeam.features.verify",
    "verify_store": "roibeam.features.verify",
    "StoreWriter": "roibeam.features.writing.store_writer",
    "write_store": "roibeam.features.writing.store_writer",
}
__all__ = list(_FILES)
__getattr__, __dir__ = lazy_names(__name__, _FILES)
