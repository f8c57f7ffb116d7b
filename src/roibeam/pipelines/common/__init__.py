"""Shared tools of all rooms: console, files wherever they are, devices, pages and plots, statistics.

Code belongs here only when two rooms need it. Contents of a data set's files are read in pipelines/data, those of a
store's in features. A page begins in page_layout.py; plot.py draws its curves, charts.py its photos. Read
locations.py first.
"""
