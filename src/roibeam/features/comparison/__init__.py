"""Two stores side by side: which photos and regions pair, how far boxes, scores and features are apart.

The one comparison of stores that there is; pages and words about it are in pipelines/extract/stores. Read
store_comparison.py first.
"""
