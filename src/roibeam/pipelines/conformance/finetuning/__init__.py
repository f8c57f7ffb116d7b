"""Fine-tuning against its reference arrays (goldens/finetune_*): how training goes on, and what data sets give.

Read family.py first: it tells kinds of cases by their content.
"""
