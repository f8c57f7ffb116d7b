"""Official metrics as pure functions over plain rows, and result files in their official formats; no torch.

A task has a file. Read measure.py first, then vqa.py.
"""
