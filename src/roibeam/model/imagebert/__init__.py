"""ImageBERT (arXiv:2001.07966): one stream, regions by location embeddings, four pre-training objectives.

Read model.py beside the paper.
"""
