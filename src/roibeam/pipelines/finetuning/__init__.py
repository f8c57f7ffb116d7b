"""Downstream tasks: fine-tuning and predicting with any system, official metrics, and scores of result files.

A data set's own files are read by pipelines/data/datasets. Tasks and systems share rows.py and task.py alone. Read
task.py first, then run/finetune_run.py.
"""
