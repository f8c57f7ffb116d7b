"""Downstream tasks about a drawn world, in the official files of VQA v2, VCR, RefCOCO+, NLVR2 and GLUE.

A task has a file; right answers come from the scene graph, and two readers give results. Read write_tasks.py first,
then scene_queries.py.
"""
