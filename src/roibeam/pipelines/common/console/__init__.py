"""The console of a command: progress and logs, termination, `--set`, files that the command line names.

Results are printed in pipelines/cli, not here. Read progress.py first.
"""
