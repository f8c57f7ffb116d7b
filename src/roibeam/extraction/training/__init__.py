"""Training of a detector: targets, sampling, losses, batches, and heads that give logits.

The loop itself is pipelines/training, the task is pipelines/training/detector. Read batch_losses.py first.
"""
