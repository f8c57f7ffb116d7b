"""Photos at URLs to files: polite, bounded, resumable.

What the URLs belong to is read in ../datasets; nothing here computes features. Read download_run.py first, then
fetcher.py.
"""
