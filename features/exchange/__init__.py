"""Feature files of other code bases: read into records, written so that their own code reads them."""
