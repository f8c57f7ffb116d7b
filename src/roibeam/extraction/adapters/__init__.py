"""Detectors and backbones of other libraries: torchvision, transformers, detectron2, and functions of a user's file.

Read any_detector.py first, which makes a `RegionDetector` of them; each library has a file of its own, and names are
in ../weights/named_model.py. Nothing runs or is fetched that the user did not name. detectron2 is imported inside
functions of its files alone.
"""
