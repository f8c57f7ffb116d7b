"""Detectors on labelled photos: how they are trained, and how they are judged."""
