"""From what somebody names to a detector: published extractors, detector folders, and what several names say together.

Weights are read in `weights/`; how a detector computes is in `network/`. Read detector_choice.py first.
"""
