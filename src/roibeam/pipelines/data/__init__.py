"""What there is before anything is computed: photos, boxes, captions, labels, of every data set.

One reader per data set, used by extraction, training, the toy world and scoring alike; no reader knows who uses it, or
what a store is. Read source_kinds.py first.
"""
