"""The folder that a store stands in: on a local disk, or objects at a URL. Durable writes, retries, locks,
scratch space.

Knows files and bytes, not records. Read folder_protocol.py first.
"""
