"""The families of fine-tuning: runs step by step, start weights, data-set items and result files of the releases.

A case is known by its content. Files of items write what a case holds and read it as users do.
"""
