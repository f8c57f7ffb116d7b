"""Batches of rows: samples and their targets, padding, photos with boxes, and batches made in other processes.

The hidden and predicted parts of a row are drawn elsewhere (pipelines/pretraining/samples,
pipelines/analysis/evaluation). Read sample.py first.
"""
