"""Evaluation of a model on held-out captions, image by image: masked words and regions, matching, retrieval.

Questions that are the same for every model belong here; pipelines/pretraining decides when a run evaluates. Read
evaluation_run.py first.
"""
