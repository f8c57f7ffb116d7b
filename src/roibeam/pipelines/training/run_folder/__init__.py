"""What a run writes and how it is read again: config, log, kept checkpoints, curves, pages, stages. Read folder.py
first.
"""
