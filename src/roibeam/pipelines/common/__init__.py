"""Shared tools of all rooms: console, files wherever they are, devices, pages and plots, statistics.

Code belongs here only when two rooms need it. Contents of a data set's files are read in pipelines/data, those of a
store's in features. Pages are the templates in templates/, which page_layout.py fills in; plot.py draws their curves,
charts.py their photos. Read locations.py first.
"""
