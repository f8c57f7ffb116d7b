"""Step 7: what only all pairs together can tell: one text for an image, one image for a photo, no text for everything.

Read aggregation.py first.
"""
