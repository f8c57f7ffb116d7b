"""Small world that the project draws itself, written in the official files of the data sets. Needs no download.

Knows no detector and no model. web_texts.py, web_pages.py and write_web.py make a toy web of its pictures. Read
world.py first, then scene.py and write.py.
"""
