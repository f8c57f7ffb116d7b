"""Photos to a store: request, work, plan, shards, Beam, report; and what is done with finished stores.

shard/ has one shard on a worker, runners/ where Beam runs, report/ progress and pages, stores/ the work of
`roibeam store`. The engine for one shard's photos is extraction/engine. Read extraction_run.py first, then
beam_extraction.py.
"""
