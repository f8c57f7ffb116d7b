"""The one training loop, over a task that gives batches, losses and parameter groups; checkpoints, schedule, precision.

The detector's task is in detector/, those of pre-training in pipelines/pretraining; model_files/ has models from and to
files. Read loop.py first, then train_config.py. What releases do oddly to their steps is named in step_policies.py.
"""
