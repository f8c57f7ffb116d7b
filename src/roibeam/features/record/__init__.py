"""What is stored of one photo: the record, its digest, and the fingerprint of what made it.

No bytes on disk: those are in ../shard. How a record is drawn is in drawing/. Read region_record.py first.
"""
