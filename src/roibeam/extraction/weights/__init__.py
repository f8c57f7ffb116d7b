"""Published weights into our network: where a file comes from, reading it without running it, its family and names.

Nothing here computes features. Read loading.py first.
"""
