"""Data sets: official files to typed rows (rows.py), one file for each or for those of one form.

No reader knows the users of its rows. A new data set is a file here. Read rows.py and coco.py first.

A reader that finds an entry that is not as its data set writes it raises ValueError, which names file and entry, unless
it counts such entries as bad rows. OSError stands for a file that cannot be read.
"""
