"""Finished stores: copy, check, repair, import, export, compare.

How to make one is in pipelines/extract. Read store_copy.py first.
"""
