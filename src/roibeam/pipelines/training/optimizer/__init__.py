"""Optimizers and schedules, and those of the published releases with their quirks.

Which parameters are in which group is the task's choice, not known here. Read build.py first.
"""
