"""VL-BERT (arXiv:1908.08530): words and regions in one stream, every element with a visual feature.

Read config.py and model.py beside the paper, then embeddings.py. Photos instead of features: ../end_to_end.py.
"""
