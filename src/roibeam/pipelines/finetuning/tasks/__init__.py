"""Downstream tasks: their files to groups of rows, what is right, their metric and their result file. No torch.

A task has a file and knows no system; referring_targets.py and vcr_photo.py alone need torch. Read nlvr2.py first,
then referring.py; vcr.py names the files beside it.
"""
