"""What the command line looks like: the names and meanings of all options, and the pages of `--help`.

No command stands here, and nothing here knows what a command does. Read option_names.py first: it says what each option
means in every command. option.py makes options of it, command.py and help_page.py show them.
"""
