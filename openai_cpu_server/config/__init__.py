"""Options of all commands, each defined once with its default and description.

Commands read them at their start and hand narrow frozen records to each part. Invalid values raise
StartupError with one line that names the option and its source. `--help` and the manual come from these
classes.
"""
