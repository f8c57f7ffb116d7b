"""Numbers about numbers: intervals and verdicts, ranks of retrieval, names of measures, figures of papers.

No torch models, no files of runs. Read verdict.py first.
"""
