"""One photo: its reference and file, its bytes as pixels, its pixels as the network's input.

Photos in bulk are in pipelines/data. Read image_ref.py first.
"""
