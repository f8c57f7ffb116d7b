"""Cases of fine-tuning (goldens/finetune_*): trajectories, start weights, items of data sets, result files.

family.py says which file is of which kind. A trajectory runs through the training loop itself (trajectory.py).
"""
