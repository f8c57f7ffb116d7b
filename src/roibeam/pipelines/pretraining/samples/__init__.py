"""Samples of each system: rows drawn from a caption and its regions, one file a system beside shared rows and settings.

The row itself and the padding of rows to a batch are in pipelines/data/batches. Read sampler.py first.
"""
