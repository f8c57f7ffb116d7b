"""The family "detector": networks, selections, ties, weights and end-to-end cases of the Faster R-CNN.

What a case of any family is (arrays, checks, tolerances) is in the room above. Read family.py first.
"""
