"""One shard: its bytes in LMDB, its writer and readers, its manifest and offset index, and how it is published.

What lies over several shards is ../store.py. docs/store-format.md has every byte. Read layout.py first, then writer.py
and reader.py.
"""
