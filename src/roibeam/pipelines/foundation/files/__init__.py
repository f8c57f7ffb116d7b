"""Files wherever they are: paths, URLs, members of archives, JSON, scratch databases, dead letters. Read
locations.py first.
"""
