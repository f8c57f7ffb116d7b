"""The published runs as data, one file a system, listed in published.py.

No code of a run: a recipe names a system, its settings and its data, and the rooms around do the rest. Read recipe.py
first.
"""
