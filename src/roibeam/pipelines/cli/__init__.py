"""The command line, a file a command: it parses, calls and prints, nothing else.

The work of a command stands in the room that it belongs to and can be called without the command line. Nothing imports
this room. Read main.py first.
"""
