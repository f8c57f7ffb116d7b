"""Region features on disk: the record of one image, the shard, the store.

Read first: `record.py` (what is stored), `layout.py` (its bytes), `store.py` (reading), docs/store-format.md (every
byte).
Imports nothing of ours, and neither torch nor beam nor pyarrow: a store is readable on a bare machine.
"""

from features.batch import BatchBuffers, RegionBatch
from features.batch_stream import BatchStream
from features.comparison import StoreComparison, compare
from features.digest import content_digest, merge_digests, record_digest
from features.exchange.butd_tsv import ButdTsv, read_butd_tsv
from features.fingerprint import Fingerprint, feature_space_of
from features.layout import RegionMeta
from features.manifest import DeadLetter, ShardEntry, ShardManifest, ShardSummary, StoreManifest
from features.publish import publish_shard, publish_store
from features.record import RegionRecord, TopKDistribution
from features.record_source import RecordSource
from features.region_filter import RegionFilter
from features.shard import ShardWriter
from features.shard_reader import ShardReader
from features.store import FeatureStore
from features.verify import Problem, verify_store

__all__ = [
    "BatchBuffers",
    "BatchStream",
    "ButdTsv",
    "DeadLetter",
    "FeatureStore",
    "Fingerprint",
    "Problem",
    "RecordSource",
    "RegionBatch",
    "RegionFilter",
    "RegionMeta",
    "RegionRecord",
    "ShardEntry",
    "ShardManifest",
    "ShardReader",
    "ShardSummary",
    "ShardWriter",
    "StoreComparison",
    "StoreManifest",
    "TopKDistribution",
    "compare",
    "content_digest",
    "feature_space_of",
    "merge_digests",
    "publish_shard",
    "publish_store",
    "read_butd_tsv",
    "record_digest",
    "verify_store",
]
