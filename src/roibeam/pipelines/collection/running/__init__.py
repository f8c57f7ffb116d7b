"""A whole collection: units of pages and of pictures as Beam elements, the fetch between them, what is written.

Read collection_run.py first, then part.py.
"""
