"""What there is before anything is computed: photos, boxes, captions, labels, of every data set.

One reader per data set, used by extraction, training, the toy world and scoring alike. Read source_kinds.py first.
"""
