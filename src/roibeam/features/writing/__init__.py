"""Writing of a store: `StoreWriter` for a user's own features, and the parts that an import and a copy share with it.

The shards themselves are written by ../shard/writer.py. Read store_writer.py first.
"""
