"""Options of all commands, each defined once with its default and description.

Commands read them at their start from the command line, the environment, secret files and a TOML file.
`server` hands each part a narrow frozen record. An invalid value is rejected here: StartupError with one line
that names the option and its source. `--help` and the manual are generated from these classes.
"""
