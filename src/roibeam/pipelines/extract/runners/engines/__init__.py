"""Flink and Spark: what a run asks of them before it begins, and small clusters of them on this machine.

Knows nothing of photos or shards. Read small_cluster.py first, then spark_cluster.py; for runs job_server.py.
"""
