"""Inputs of every computation: photos, boxes, captions and labels of all data sets, up to the batches of a training.

Extraction, training, the toy world and scoring use it alike. A data set has one reader, in datasets/; no reader knows
its users, or what a store is. Read source_kinds.py first.
"""
