"""The pages of the documentation site, for mkdocs: those of the repository, and a reference made from the code.

`make docs` calls it. Read pages.py first, then reference.py.
"""
