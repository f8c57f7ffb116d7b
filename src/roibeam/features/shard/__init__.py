"""One shard: its bytes in LMDB, its writer and reader, its manifest and offset index, and its publication.

writer.py also writes one after the other, from records that come in order. Reading many as one store is ../store.py,
their plan is in pipelines/data. docs/store-format.md has every byte. Read layout.py first, then reader.py and
writer.py.
"""
