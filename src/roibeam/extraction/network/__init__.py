"""The detector's parts as torch modules and pure functions: ResNet, RPN, RoI heads, boxes, the tensors by name.

Sizes are in config.py, every published quirk in conventions.py. No files, no photos, no losses. Read config.py and
conventions.py first, then roi_heads.py.
"""
