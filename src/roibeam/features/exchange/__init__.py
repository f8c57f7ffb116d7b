"""Feature files of other code bases, one file a format, read and written record by record.

formats.py names them all; a new format is a file here and a line there. Nothing from outside is executed. Read
formats.py first, then entry_file.py.
"""
