"""What a run did and how far it is, read from the store's own files: progress, summary, report page. Read
store_status.py first.
"""
