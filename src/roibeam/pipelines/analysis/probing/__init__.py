"""What a model says of one image and one text: guessed words and regions, the match, and who looks at what.

Figures over many captions are in ../evaluation. Read probe.py first.
"""
