"""detectron2's networks behind roibeam's detector interface, and the Visual Genome network in its terms.

Only here is detectron2 imported, inside functions. The computation of our own network is in ../network. Read adapter.py
first.
"""
