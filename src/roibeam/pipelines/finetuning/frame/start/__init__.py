"""What a fine-tuning run starts from: a model with its words, and what of one that was fine-tuned before goes on.

Read task_start.py first, then first_task.py.
"""
