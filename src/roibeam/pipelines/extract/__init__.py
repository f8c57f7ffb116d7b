"""Photos to a store: plan, shards, Beam, manifest, report.

The engine for one shard's photos is extraction/engine; what is done with finished stores is in stores/. Read
extraction_run.py first, then beam_extraction.py.
"""
