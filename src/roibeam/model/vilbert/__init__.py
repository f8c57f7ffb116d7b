"""ViLBERT (arXiv:1908.02265) and 12-in-1 (arXiv:1912.02315): two streams that meet in co-attention, or one.

Read model.py beside the paper, then encoder.py.
"""
