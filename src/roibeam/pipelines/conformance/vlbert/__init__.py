"""The family "vlbert": VL-BERT on features, from pixels, its tasks and its data. Read family.py first."""
