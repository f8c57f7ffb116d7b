"""HTML pages, charts and plots, for reports: nothing is fetched, no script runs.

What a report says is not known here: each report stands in the room whose work it tells of. Read frame.py first;
plot.py draws curves, charts.py photos and histograms, page.py is the page of a store.
"""
