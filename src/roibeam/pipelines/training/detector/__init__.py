"""Training and evaluation of detectors: the task for the loop, labelled photos, metrics, report.

The network and its losses are in extraction. Read task.py first, then evaluation.py.
"""
