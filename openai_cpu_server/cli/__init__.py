"""Command line: `openai-cpu-server COMMAND`. Each command is one function that takes its arguments.

`main` imports only the command that is called, so `--version` needs no server. Wrong use raises StartupError:
one line on standard error and exit code 2, never a traceback; Ctrl-C is 130. Results go to standard output,
messages to standard error.
"""
