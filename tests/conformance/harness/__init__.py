"""`python tests/conformance`: every reference array against our code, with its tolerance. One file or room a family.

Cases are read as users' files are. Tolerances stand in tolerances.py alone. Read runner.py first.
"""
