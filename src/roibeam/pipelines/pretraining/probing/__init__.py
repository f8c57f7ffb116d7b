"""A trained model asked about one photo. Read probe.py first."""
