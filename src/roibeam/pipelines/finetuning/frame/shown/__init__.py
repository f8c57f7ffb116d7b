"""What of a group's images and texts is shown: regions of one store or two, and what is hidden to be learned beside.

Read shown_image.py first; ../group_batches.py makes batches of it.
"""
