"""Runs that train and predict any task with any system: groups of rows, their batches, the network, its predictions.

Rules of one task are in ../tasks, those of one system in ../systems. Read finetune_run.py first, then group_batches.py.
"""
