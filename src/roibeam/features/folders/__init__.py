"""The folder that a store stands in: on a local disk, or objects at a URL. Durable writes, retries, scratch space.

Knows files and bytes, not records. Read output_folder.py first.
"""
