"""Files wherever they are: paths, URLs, members of archives, JSON, scratch databases, dead letters.

What is in a data set's files is read in pipelines/data, what is in a store's in features. Read locations.py first.
"""
