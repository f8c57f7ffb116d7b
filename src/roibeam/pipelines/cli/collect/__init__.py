"""`roibeam collect`: image-text pairs from web pages, and the judges of pictures and pairs.

The work is in pipelines/collection; this room parses, calls and prints. Read app.py first.
"""
