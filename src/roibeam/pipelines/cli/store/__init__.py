"""`roibeam store ...`: one file for a few commands that look at, copy, mend or convert stores.

They parse and print, and know no bytes: the work is in pipelines/extract/stores. Read info.py first.
"""
