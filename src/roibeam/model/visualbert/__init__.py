"""VisualBERT (arXiv:1908.03557): words and regions in one BERT, two sentences, aligned words.

Read model.py beside the paper.
"""
