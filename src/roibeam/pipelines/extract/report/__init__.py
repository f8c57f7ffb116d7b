"""Reports of a run, read from the store's own files: progress, summary, page, warnings; and the dry run.

Nothing here changes what a store holds or needs the run to be alive. Read store_progress.py first.
"""
