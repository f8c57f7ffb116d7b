"""The processes of a run: how many torchrun started, what each computes on, and sums over all of them.

Read launched.py first.
"""
