"""InterBERT (arXiv:2003.13198): a shared encoder, then one for text alone and one for regions; groups are masked.

What other models use too is in ../common. Nothing here reads captions or stores. Read model.py beside the paper first,
then group_masking.py, which has the masks.
"""
