"""Optimizers and schedules, and those of the published releases with their quirks. Read build.py first."""
