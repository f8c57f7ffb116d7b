"""A trained model judged on held-out captions: measures, retrieval, validation within the loop. Read
evaluation_run.py first.
"""
