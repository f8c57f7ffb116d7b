"""HTML pages and charts without a library, for reports.

What a report says is not known here: each report stands in the room whose work it tells of. Read page.py first.
"""
