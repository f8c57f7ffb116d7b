"""What is done with finished stores: copy, repair, import, export, compare.

How to make one is in pipelines/extract. Read store_copy.py first.
"""
