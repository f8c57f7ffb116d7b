"""ViLBERT (arXiv:1908.02265) and 12-in-1 (arXiv:1912.02315): two streams that meet in co-attention, or one.

Parts that other models use too are in ../common; how samples are drawn is not known here. Read model.py beside the
paper first, then encoder.py.
"""
