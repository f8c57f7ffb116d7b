"""Tasks of language: texts without an image (GLUE), and what the phrases of a caption mean (Flickr30k Entities).

named_tasks.py above has them by name. Read glue.py first, then entities.py.
"""
