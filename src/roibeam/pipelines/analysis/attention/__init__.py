"""What the heads of a trained model look at: regions that a phrase names, and those of words that hang on it.

After "What Does BERT with Vision Look At?" (ACL 2020, section 3), whose code is not public. Read attention_request.py
first, then questions.py and looks.py.
"""
