"""What several models share: attention and layers, heads, losses, masking, packing of rows, reading checkpoints.

What one model alone has stands in its own room. No `if model == ...`. Read transformer.py first.
"""
