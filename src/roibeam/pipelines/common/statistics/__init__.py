"""Numbers about numbers: the paired bootstrap, ranks of retrieval.

No torch models, no files. Read bootstrap.py first.
"""
