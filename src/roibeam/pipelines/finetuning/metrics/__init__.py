"""Official metrics as pure functions over plain rows, without files and without torch.

A task has a file; vqa_targets.py has training targets of published codes. Read vqa.py first, then measure.py.
"""
