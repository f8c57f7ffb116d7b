"""What somebody asks of pre-training, in words and paths, and the run that comes of it: `roibeam pretrain` from Python.

The dataclasses of a request and what turns them into runs. Parsing and printing are in pipelines/cli, the runs
themselves in the room above. Read request.py first, then requested_run.py.
"""
