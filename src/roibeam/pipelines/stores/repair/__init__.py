"""`roibeam store repair`: broken and missing images of a store extracted again, and compared with what was there.

Read store_repair.py first.
"""
