"""The one reader of pickles: it makes plain values and arrays and runs nothing that a pickle names.

Read read.py first, then values.py, which says what a pickle may hold.
"""
