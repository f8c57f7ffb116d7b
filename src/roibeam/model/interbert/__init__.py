"""InterBERT (arXiv:2003.13198): a shared encoder, then one for text alone and one for regions; groups are masked.

Read model.py beside the paper; group_masking.py has the masks.
"""
