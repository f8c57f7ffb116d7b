"""Ways to read a store for training: batches ahead of time, orders of an epoch, ranks, staged copies, torch datasets.

The store itself is ../store.py. Only the two torch files need torch. Read batch_stream.py first.
"""
