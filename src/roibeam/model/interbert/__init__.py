"""InterBERT (arXiv:2003.13198): a shared encoder, then one for text alone and one for regions; groups are masked.

Parts that other models use too are in ../common, the masks of groups in its masking.py. Nothing here reads captions or
stores. Read model.py beside the paper first.
"""
