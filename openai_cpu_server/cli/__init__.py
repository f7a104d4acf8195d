"""The command line: `openai-cpu-server COMMAND`. Each command is one function that takes its arguments.

`main` runs once for each process and imports only the command that is called: `--version` waits for no
server. Wrong use is one line on standard error and exit code 2, never a traceback; Ctrl-C is 130. What a
command finds goes to standard output, what it says meanwhile to standard error.
"""
