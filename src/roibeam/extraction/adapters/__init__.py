"""Detectors and backbones of other libraries: torchvision, Hugging Face transformers, and functions of a user's file.

named_model.py is what `--detector` and `--backbone` name (no torch), any_detector.py makes a `RegionDetector` of them;
each library has a file of its own. Nothing runs or is fetched that the user did not name.
"""
