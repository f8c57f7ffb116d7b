"""The version of this installation, as its package says it."""

from importlib.metadata import version

__version__ = version("roibeam")
# Of the clusters that `make test-cluster` runs; of Spark those of Beam's own build.
FLINK_VERSION, SPARK_VERSION, SCALA_VERSION = "1.19", "3.5.0", "2.12"
