"""HTML pages and charts without a library, for reports. Read page.py first."""
