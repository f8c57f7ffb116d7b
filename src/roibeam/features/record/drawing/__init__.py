"""Regions drawn on their photo: colours, places of labels, pixels, and what a notebook shows of a record.

Arrays in, arrays or markup out; knows no record's class and no store. OpenCV and Pillow are imported when something is
drawn. Read region_drawing.py first.
"""
