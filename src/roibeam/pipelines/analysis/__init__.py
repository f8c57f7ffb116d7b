"""Analysis of models: probes of one pair, attention of heads, evaluation on held-out captions; look and search.

Imports nothing that pre-trains, so that it reads any checkpoint. Read evaluation/evaluation_run.py first, then
probe.py.
"""
