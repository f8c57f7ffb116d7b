"""One shard on a worker: its job, its detector, its progress, its place in the store's folder.

The manifest comes last, and the first attempt wins. Only run_progress.py and store_folder.py look at all shards of a
run; the plan is in the room above. Read shard_job.py first.
"""
