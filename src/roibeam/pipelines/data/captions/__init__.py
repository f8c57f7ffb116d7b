"""Captions of photos: their files, the join with image ids, and the table they make.

Who asks does not matter: extraction joins them to photos, pre-training to records. A data set's own format is in
../datasets. Read caption_join.py first.
"""
