"""Stores joined to the captions or task texts of their images, and the rows that come of it.

How caption and data set files are read belongs to `sources`. Read `captioned_store.py` first.
"""
