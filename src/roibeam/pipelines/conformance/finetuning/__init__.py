"""The families of fine-tuning: runs step by step, start weights, data-set items and result files of the releases.

Files of items write what a case holds and read it as users do. Read item_files.py first, then nlvr2_items.py.
"""
