"""What is known of a trained model: asked one pair at a time (probing), or measured on held-out captions (evaluation);
and of a detector, photo by photo (look.py).

Whatever trains a model may use this room; this room uses nothing that trains, so that it reads any checkpoint. Read
evaluation/evaluation_run.py first.
"""
