"""What only a run that trains has of its data: its tokenizer, lengths and budgets of batches, labelled photos.

Stores joined with captions are in `pipelines/inputs`, rules of one system in ../samples. Read token_budget.py first.
"""
