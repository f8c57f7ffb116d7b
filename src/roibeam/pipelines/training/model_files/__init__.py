"""Models from and to files: runs, checkpoints, published weights, BERT starts, tokenizers, joint models, provenance.

The tables of names are in model/<system>/checkpoint.py. Read model_checkpoint.py first.
"""
