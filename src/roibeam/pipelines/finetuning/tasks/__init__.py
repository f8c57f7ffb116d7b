"""Downstream tasks: their files to groups of rows, what is right, their metric and their result file. No torch.

A task has a file and knows no system; referring_targets.py alone needs torch. named_tasks.py has them by name. Read
vqa.py first, then nlvr2.py.
"""
