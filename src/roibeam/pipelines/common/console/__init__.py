"""What a person sees while a command runs: logs, progress, durations, and what a signal does.

What a command says of its result is printed in pipelines/cli, not here. Read progress.py first.
"""
