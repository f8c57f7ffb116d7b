"""The command line, a file for one command or a few alike: it parses, calls and prints, nothing else.

The work of a command stands in the room that it belongs to and can be called without the command line. Nothing imports
this room. A large command is its request, whose fields request_command.py turns into options; help_pages.py,
command_exit.py, bug_report.py and figure_table.py know no command. Read commands.py first.
"""
