"""Official metrics as pure functions over plain rows, and result files in their official formats; no torch.

A task has a file; vqa_targets.py has training targets of published codes. Read measure.py first, then vqa.py.
"""
