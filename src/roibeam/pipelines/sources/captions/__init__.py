"""Captions of photos: their files, the join with image ids, and what must be held out. Read join.py first."""
