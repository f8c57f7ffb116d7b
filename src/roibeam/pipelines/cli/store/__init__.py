"""`roibeam store ...`: one file for a few commands that look at, copy, mend or convert stores. The work is in
pipelines/stores. Read info.py first.
"""
