"""Shared parts of the models: attention and layers, heads, losses, masking, settings, reading of checkpoints.

A part that one model alone has stands in its own folder. No `if model == ...`. Read transformer.py first.
"""
