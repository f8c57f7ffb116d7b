"""The family "detector": networks, selections, ties, weights and end-to-end cases of the Faster R-CNN. Read family.py
first.
"""
