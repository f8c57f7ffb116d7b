"""Image-text pairs from web pages, as ImageBERT collected LAIT (arXiv:2001.07966, section 3): eight steps, each small.

Pages come in, clean pairs go out; judges of pictures and pairs are passed in. Rules that the paper leaves open are
marked as roibeam's. Read pairs.py first, then page_steps.py and collection_run.py.
"""
