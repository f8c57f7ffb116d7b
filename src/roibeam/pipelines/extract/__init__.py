"""Photos to a store: plan, shards, Beam, manifest, report.

The engine for one shard's photos is extraction/engine. What happens to finished stores is in pipelines/stores. Read
extraction_run.py first, then beam_extraction.py.
"""
