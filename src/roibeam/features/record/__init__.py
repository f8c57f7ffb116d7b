"""Record of one photo: its regions, its digest, and the fingerprint of what made it.

No bytes on disk: those are in ../shard. A record is drawn by region_drawing.py and notebook.py. Read region_record.py
first.
"""
