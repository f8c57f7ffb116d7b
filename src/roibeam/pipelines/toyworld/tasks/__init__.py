"""Downstream tasks about a drawn world, in the official files of VQA v2, VCR, RefCOCO+ and NLVR2, with two readers.

One file a task makes its rows; what is right is known from the scene graph. Nothing here scores anything. Read
write_tasks.py first, then known_picture.py.
"""
