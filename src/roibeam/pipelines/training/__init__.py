"""The one training loop, over a task that gives batches, losses and parameter groups; checkpoints, schedule, precision.

Detector, pre-training and fine-tuning are tasks elsewhere. Read loop.py first, then train_config.py.
"""
