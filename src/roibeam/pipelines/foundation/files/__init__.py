"""Files wherever they are: paths, URLs, members of archives, JSON, locks, scratch databases, dead letters. Read
locations.py first.
"""
