"""Pre-training of the five systems: captions and stored records, or photos, to batches, by each system's own rules.

The loop is pipelines/training; what asks and measures a trained model is pipelines/analysis. Read pretrain_run.py
first, then task.py and samples/sampler.py.
"""
