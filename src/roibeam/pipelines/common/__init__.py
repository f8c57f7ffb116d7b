"""What every room may use and what knows nothing of features: console, files, pages, statistics, `--set`, `--device`.

Something belongs here only when two rooms need it. Read files/locations.py first.
"""
