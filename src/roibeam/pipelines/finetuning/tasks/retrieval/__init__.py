"""Retrieval: groups of a true pair and distractors, and the nearest pictures.

Read retrieval_task.py first, then distractors.py. What a model says of all pairs is made in finetuning/retrieval/.
"""
