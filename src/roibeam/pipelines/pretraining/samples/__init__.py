"""What a system draws of a caption and its regions, one file a system beside what they share: masks, pairs, choices.

The row itself and the padding of rows to a batch are in pipelines/data/batches. Read sampler.py first.
"""
