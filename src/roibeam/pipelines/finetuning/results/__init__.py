"""Result files in their official formats: anybody's predictions, joined with the label files and scored.

A task has a file; what is missing, doubled or unknown is one error for all. Read row_ids.py first, then vqa_results.py.
"""
