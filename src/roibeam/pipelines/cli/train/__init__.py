"""Commands that train and ask models: pretrain, recipes, evaluate, probe. The work is in pipelines/pretraining and
pipelines/analysis. Read pretrain.py first.
"""
