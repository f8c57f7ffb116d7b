"""Flickr30k Entities of a drawn world: captions with marked phrases, the boxes they mean, and gold parses.

All is known from the scene graph and the pattern of a caption. Read write_entities.py first, then caption_parse.py.
"""
