"""Runners of Beam: options of each, a worker pool and its processes, checks of Flink and Spark clusters.

Knows nothing of photos; of shards only that those in work can be stopped. Read pipeline_run.py first, then
worker_pool.py.
"""
