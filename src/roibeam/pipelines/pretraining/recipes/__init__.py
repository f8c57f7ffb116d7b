"""The published runs as data, one file a system. Read recipe.py first."""
