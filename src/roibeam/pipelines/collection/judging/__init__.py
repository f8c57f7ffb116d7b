"""Judges: trained models that decide whether a picture is a natural photo, and whether a text describes it.

Pages, pictures and pairs are made outside. Read judges.py first, then boosted_model.py, picture_judge.py and
pair_judge.py.
"""
