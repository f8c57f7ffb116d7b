"""One shard: its bytes in LMDB, its writer and readers, its manifest and offset index, and how it is published.

sequence.py writes one after the other, from records that come in order. Reading many as one store is ../store.py, their
plan is in pipelines/extract. docs/store-format.md has every byte. Read layout.py first, then writer.py and reader.py.
"""
