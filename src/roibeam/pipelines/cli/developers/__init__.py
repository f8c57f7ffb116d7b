"""Commands that few users need, last in the help: conformance, leaks, worker-pool.

They parse and print; the work is in pipelines/conformance, pipelines/data and pipelines/extract/runners. Read
leaks.py first.
"""
