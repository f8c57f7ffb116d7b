"""Captions of photos: their files, the join with image ids, and the table they make. Read caption_join.py first."""
