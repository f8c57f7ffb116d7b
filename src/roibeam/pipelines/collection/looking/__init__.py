"""Steps 1 to 4, a page at a time: its text, its language, its dominant image, the texts that may describe it.

Pure functions of a page and the thresholds; nothing is fetched, no script runs. Read page_steps.py first.
"""
