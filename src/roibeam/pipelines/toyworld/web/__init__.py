"""A toy web: pages in HTML and WARC with drawn pictures, where every page, picture and text is labelled.

What is made of such pages is in pipelines/collection. Read write_web.py first, then page_plan.py.
"""
