"""From one row to a batch: samples and their targets, padding, photos with boxes, and batches made in other processes.

What a row hides and predicts is drawn elsewhere (pipelines/pretraining/samples, pipelines/analysis/evaluation). Read
sample.py first.
"""
