"""Where Beam runs: option sets of each runner, our worker pool and its processes, and in engines/ Flink and Spark.

Knows nothing of photos; of shards only that those in work can be stopped. Read option_sets.py first, then
worker_pool.py.
"""
