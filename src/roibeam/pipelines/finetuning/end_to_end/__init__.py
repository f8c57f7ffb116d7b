"""Fine-tuning through the detector's network: what photos and encoder a run has, and photos on their way into batches.

Knows no task and no system. Read encoder_request.py first, then group_photos.py.
"""
