"""What somebody asks of pre-training, in words and paths, and the run that comes of it: `roibeam pretrain` from Python.

Here belong the dataclasses of a request and what turns them into runs; parsing and printing belong into cli, the runs
themselves into the room above. Read first: request.py, then requested_run.py.
"""
