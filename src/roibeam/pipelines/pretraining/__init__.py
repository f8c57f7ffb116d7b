"""Pre-training of the five systems: captions and stored records, or photos, to batches, by each system's own rules.

The training loop is in pipelines/training, evaluation in pipelines/analysis. A request is checked before torch is
imported. Read pretrain_run.py first, then task.py and samples/sampler.py.
"""
