"""One file a data set: its official files to typed rows (rows.py). A new data set is a file here.

No reader knows who uses its rows. Read rows.py and coco.py first.
"""
