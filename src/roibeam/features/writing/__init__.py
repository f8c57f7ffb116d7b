"""Writing a store: `StoreWriter` for features of one's own, and what an import and a copy share with it.

The shards themselves are written by shard/sequence.py. Read store_writer.py first.
"""
