"""Two trained judges, as ../judges.py asks for them: is a picture a natural photo, and does a text describe it?

How pages become pictures and pairs stands outside. Read boosted_model.py first, then picture_judge.py, pair_judge.py.
"""
