"""Downstream tasks: their files to groups of rows, what is right, their metric and their result file. No torch.

A task has a file and knows no system; named_tasks.py has them by name. Read vqa.py first, then ../task.py.
"""
