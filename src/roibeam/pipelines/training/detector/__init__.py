"""Training and judging detectors: the task for the loop, labelled photos, average precision, recall, calibration.

The network and its losses are in extraction. Read task.py first, then evaluation.py.
"""
