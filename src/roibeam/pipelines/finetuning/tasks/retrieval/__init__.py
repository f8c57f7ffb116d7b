"""Retrieval: captioned pictures of a split, groups of a true pair and distractors, and the nearest pictures.

Read captioned.py first, then distractors.py. What a model says of all pairs is made in finetuning/retrieval/.
"""
