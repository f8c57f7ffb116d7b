"""Downstream tasks: their files to groups of rows, what is right, their metric and their result file.

A task has a file and knows no system; named_tasks.py has them by name. referring_rules/targets.py and
vcr_rules/photo.py alone need torch. Read vqa.py first, then ../task.py; vcr.py and referring.py name the files beside
them.
"""
