"""The family "vlbert": VL-BERT on features, from pixels, its tasks and its data.

What a case of any family is (arrays, checks, tolerances) is in the room above. Read family.py first, then case.py.
"""
