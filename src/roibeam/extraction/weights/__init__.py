"""Weights of a detector: from a user's names to a file, its family and the tensors of the network.

Presets and detector folders are found here too, without torch. Nothing here computes features. Read loading.py first,
then detector_choice.py.
"""
