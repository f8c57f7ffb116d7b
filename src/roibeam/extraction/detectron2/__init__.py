"""detectron2's networks behind our detector interface, and the Visual Genome network in its terms.

Only here is detectron2 imported, and only when it is asked for. What our own network computes is in ../network.
Read adapter.py first.
"""
