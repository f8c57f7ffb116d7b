"""The families of official metrics: cases in json, whose every expected value is compared with ours.

What is noted and not compared stands in metric_case.py, with its reason. Read metric_case.py first, then vqa_cases.py.
"""
