"""What a run trains on: stores joined with captions, corpora, task texts, photos, lengths and budgets of batches.

Rules of one system are in ../samples. Read captioned_store.py first, then corpus.py.
"""
