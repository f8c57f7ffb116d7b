"""The one training loop, over a task that gives batches, losses and parameter groups; checkpoints, schedule, precision.

Tasks stand elsewhere: the detector's in pipelines/detector, those of pre-training in pipelines/pretraining. Read
loop.py first, then train_config.py. What releases do oddly to their steps is named in step_policies.py.
"""
