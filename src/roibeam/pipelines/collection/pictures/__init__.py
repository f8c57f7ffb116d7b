"""Step 5 on pictures that were fetched: decoded, measured, hashed, looked at for what must not be kept.

The fetch itself is pipelines/data/download. Read picture_step.py first.
"""
