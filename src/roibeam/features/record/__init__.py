"""What is stored of one photo: the record, its digest, and the fingerprint of what made it.

No bytes on disk: those are in ../shard. Read region_record.py first.
"""
