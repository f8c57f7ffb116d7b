"""From the answers of all runs to docs/evidence.md: intervals, verdicts on the claims, tables and plots.

claims.py judges, page.py puts the page together. Nothing here trains or asks a model.
"""
