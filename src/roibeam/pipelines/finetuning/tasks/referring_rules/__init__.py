"""What referring expressions are asked about: which regions are candidates, and which of them count as right.

The groups that are made by them are in ../referring.py. Read regions.py first, then targets.py, which needs torch.
"""
