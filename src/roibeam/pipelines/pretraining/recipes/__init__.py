"""Published pre-training runs as data, one file a system, listed in published.py.

A recipe names a system, its settings and its data; the code of a run is outside. Read recipe.py first.
"""
