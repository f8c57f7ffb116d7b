"""The detector's parts as torch modules and pure functions: ResNet, RPN, RoI heads, anchors, boxes, suppression.

Sizes are in config.py, every published quirk in conventions.py. No files, no photos, no losses. Read config.py and
conventions.py first, then roi_heads.py.
"""
