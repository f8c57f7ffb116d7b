"""Small clusters of Flink and Spark on this machine, for tests and for trying out.

Knows nothing of photos or shards. Read small_cluster.py first, then spark_cluster.py.
"""
