"""Commands that train and ask models: pretrain, recipes, evaluate, probe.

They parse and print, and know no batches: the work is in pipelines/pretraining and pipelines/analysis. Read pretrain.py
first.
"""
