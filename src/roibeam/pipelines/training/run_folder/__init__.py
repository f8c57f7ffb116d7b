"""Files of a run beside its checkpoints, written and read again: config, log, curves, pages, stages, training data.

Checkpoints, and which of them stay, are ../checkpoint.py. Read folder.py first.
"""
