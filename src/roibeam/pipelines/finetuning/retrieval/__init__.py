"""All captions with all pictures: what a fine-tuned model says of them, on disk, and a page of it.

Which groups a run is trained on stands in tasks/retrieval/, how ranks are counted in metrics/, the file in results/.
Read pair_scorers.py first, then score_parts.py and predict_pairs.py.
"""
