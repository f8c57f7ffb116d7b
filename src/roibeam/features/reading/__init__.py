"""Ways to read a store for training: orders of an epoch, ranks, batches made ahead, staged copies, torch data sets.

The store itself is ../store.py. Only torch_datasets.py knows torch. Read batch_order.py first.
"""
