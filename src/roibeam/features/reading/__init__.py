"""Ways to read a store for training: batches ahead of time, orders of an epoch, ranks, staged copies, torch datasets.

The store itself is ../store.py. Only torch_datasets.py and tensor_batches.py know torch. Read batch_stream.py first.
"""
