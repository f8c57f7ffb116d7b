"""Photos at URLs to files: polite, bounded, resumable. Read download_run.py first, then fetcher.py."""
