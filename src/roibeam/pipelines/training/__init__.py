"""The training loop, over a task that gives batches, losses and parameter groups; checkpoints, optimizer, settings.

The detector's task is in detector/, those of pre-training in pipelines/pretraining; model_files/ has models from and to
files, run_folder/ what a run writes. Accidents of the releases are named in step_policies.py. Read loop.py first, then
train_config.py.
"""
