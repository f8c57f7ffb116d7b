"""Photos to a store: request, work, plan, shards, Beam, report; and what is done with finished stores.

shard/ has one shard on a worker, runners/ where Beam runs, stores/ the work of `roibeam store`. Progress and pages are
read from the store's own files. The engine for one shard's photos is extraction/engine. Read beam_extraction.py first,
then work.py.
"""
