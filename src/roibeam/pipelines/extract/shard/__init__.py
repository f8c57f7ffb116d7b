"""One shard on a worker: its job, its heartbeat, its card, its place in the store's folder.

The manifest comes last, and the first attempt wins. Nothing here knows the other shards of a run: the plan is in the
room above. Read shard_job.py first.
"""
