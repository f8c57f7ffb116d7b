"""Captions and task texts: their files, the join with image ids, stores joined to them, the corpus of samples.

Extraction joins them to photos, pre-training to records. A data set's own format is in ../datasets. Read
caption_join.py first, then captioned_store.py.
"""
