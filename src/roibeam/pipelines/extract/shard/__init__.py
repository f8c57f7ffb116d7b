"""One shard on a worker: its job, its heartbeat, its card, its place in the store's folder. Manifest last, the first
attempt wins. Read shard_job.py first.
"""
