"""ImageBERT (arXiv:2001.07966): one stream, regions by location embeddings, four pre-training objectives.

Parts that other models use too are in ../common; how samples are drawn is not known here. Read model.py beside the
paper first.
"""
