"""Published fine-tuning runs as data: what they set for a task and a system, and what came of them. No torch.

Pre-training has its own in pipelines/pretraining/recipes. Read task_recipe.py first.
"""
