"""Folder of a store: on a local disk, or objects at a URL. Durable writes, retries, locks, scratch folders.

Knows files and bytes, not records. Read folder_protocol.py first.
"""
