"""The objects that a file names in the images of a store: their classes and outlines, at the places of its regions.

Read image_objects.py first.
"""
