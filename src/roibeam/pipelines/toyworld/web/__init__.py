"""A toy web: pages in HTML and WARC with drawn pictures, where it is known of every page, picture and text what it is.

What is made of such pages is in pipelines/collection; nothing here knows it. Read write_web.py first, then page_plan.py.
"""
