"""VisualBERT (arXiv:1908.03557): words and regions in one BERT, two sentences, aligned words.

Parts that other models use too are in ../common; how samples are drawn is not known here. Read model.py beside the
paper first.
"""
