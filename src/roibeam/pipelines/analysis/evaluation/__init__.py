"""What a model gets right on held-out captions, image by image: masked words and regions, matching, retrieval.

Questions that are the same for every model belong here; when a run asks them is up to pipelines/pretraining. Read
evaluation_run.py first.
"""
