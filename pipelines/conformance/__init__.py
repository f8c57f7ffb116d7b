"""`roibeam conformance`: reference arrays of published codes against ours. Read runner.py first."""
