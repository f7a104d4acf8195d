"""Command line: `openai-cpu-server COMMAND`, a function per command.

`main` imports only the called command. Wrong use raises StartupError: one line on standard error and exit
code 2; Ctrl-C is 130. Results go to standard output, messages to standard error.
"""
