"""Downstream tasks: their official metrics, the result files that are scored, and what a score says of itself.

No torch is imported here. A data set's own files are read by sources/datasets/. Read score_run.py first.
"""
