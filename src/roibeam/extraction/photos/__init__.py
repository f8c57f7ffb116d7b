"""One photo: where it is, how its bytes become pixels, how pixels become the network's input.

Where photos come from in bulk is in pipelines/data. Read image_ref.py first.
"""
