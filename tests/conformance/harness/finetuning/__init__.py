"""The families of fine-tuning: runs step by step, start weights, data-set items and result files of the releases.

Read family.py first: it tells kinds of cases by their content. Files of items write what a case holds and read it as
users do (item_files.py).
"""
