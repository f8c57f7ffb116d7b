"""What a model is given, whoever gives it: pre-training or analysis.

Stores joined to texts (captioned), rows and batches (batches), photos of records, what a text says of a mirrored photo,
and whether it all fits a model. What is drawn for one system's objective is in pipelines/pretraining/samples. Read
captioned/corpus.py first.
"""
