"""What a run did and how far it is, read from the store's own files: progress, summary, report page.

Nothing here changes a store or needs the run to be alive. Read store_status.py first.
"""
