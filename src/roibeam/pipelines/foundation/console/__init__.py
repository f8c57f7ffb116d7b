"""What a person sees while a command runs: logs, progress, durations, and what a signal does. Read progress.py
first.
"""
