"""Where pages come from: WARC files, here or at URLs, and folders of HTML; cut into units of work.

A record that cannot be read is counted and passed over. Read page_units.py first, then warc_pages.py.
"""
