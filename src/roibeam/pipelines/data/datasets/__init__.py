"""Data sets: official files to typed rows (rows.py), one file for each or for those of one form.

No reader knows the users of its rows. A new data set is a file here. Read rows.py and coco.py first.
"""
