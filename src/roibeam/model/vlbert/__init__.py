"""VL-BERT (arXiv:1908.08530): words and regions in one stream, every element with a visual feature.

Parts that other models use too are in ../common, photos instead of features in ../end_to_end.py. Read config.py and
model.py beside the paper first, then embeddings.py.
"""
