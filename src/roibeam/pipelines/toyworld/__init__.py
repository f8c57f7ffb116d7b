"""A small world that the project draws itself, written in the official files of the data sets. Needs no download.

Nothing here knows detectors or models. Read world.py and scene.py first.
"""
