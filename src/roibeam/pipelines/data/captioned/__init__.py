"""Stores joined to the captions or task texts of their images, and the rows that come of it.

How files of captions and of data sets are read is in pipelines/data. Read captioned_store.py first.
"""
