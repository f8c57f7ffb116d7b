"""Image-text pairs from web pages, as ImageBERT collected LAIT (arXiv:2001.07966, section 3): eight steps, each small.

Pages come in, clean pairs go out; whoever judges pictures or pairs (`judges.py`) is handed in. What the paper does not
say is marked as ours. Read page.py and pair.py first, then reasons.py.
"""
