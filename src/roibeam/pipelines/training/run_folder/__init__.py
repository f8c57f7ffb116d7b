"""What a run writes beside its checkpoints, and how it is read again: config, log, curves, pages, stages.

Checkpoints, and which of them stay, are ../checkpoint.py. Read folder.py first.
"""
