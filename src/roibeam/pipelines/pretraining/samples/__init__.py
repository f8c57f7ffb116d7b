"""From a caption and its regions to one row of a batch, one file a system beside what they share.

Read sample.py and sampler.py first.
"""
