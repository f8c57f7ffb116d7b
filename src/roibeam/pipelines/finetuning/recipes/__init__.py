"""Published fine-tuning runs as data: settings for a task and a system, and results; no torch.

Pre-training has its own in pipelines/pretraining/recipes. Read task_recipe.py first.
"""
