"""The command line, a file for one command or a few alike: it parses, calls and prints, nothing else.

The work of a command stands in the room that it belongs to and can be called without the command line. Nothing imports
this room. options.py has what several commands share. Read commands.py first.
"""
