"""Official metrics as pure functions over plain rows, without files and without torch.

A task has a file; vqa_targets.py has the training targets that published codes make. Read vqa.py first, then measure.py.
"""
