"""All captions with all pictures: what a fine-tuned model says of them, on disk, and what that is worth.

Read pair_scorers.py first, then score_parts.py and predict_pairs.py. Which groups a run is trained on stands in
tasks/retrieval/, how ranks are counted in metrics/retrieval.py.
"""
