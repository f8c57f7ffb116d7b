"""Cases of fine-tuning (goldens/finetune_*): trajectories, start weights, items of data sets, result files.

Read family.py first: which file is of which kind; then trajectory.py: a run of theirs, done by our training loop.
"""
