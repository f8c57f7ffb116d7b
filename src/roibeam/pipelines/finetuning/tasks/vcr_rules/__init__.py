"""VCR's rules in which the releases differ: what people are called, how texts are cut, which regions are shown.

The groups that are made by them are in ../vcr.py. Read names.py first, then pieces.py and regions.py.
"""
