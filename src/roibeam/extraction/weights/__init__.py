"""Weights of a detector: from the names that a user gives to a file, its family and the tensors of our network.

Presets and detector folders are found here too, without torch. Nothing here computes features. Read loading.py first,
then detector_choice.py.
"""
