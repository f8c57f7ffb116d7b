"""Any task with any system: groups of rows to batches, the task of the training loop, runs that train and predict.

What is particular to a task is in tasks/, to a system in systems/. Read finetune_run.py first, then group_batches.py.
"""
