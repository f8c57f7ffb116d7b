"""Downstream tasks: their files to groups of rows, labels, metric and result file.

A task has a file and knows no system; named_tasks.py has them by name. Read vqa.py first, then
../task.py.
"""
